"""Options of `halfbyte release`, and the names of its stages."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from halfbyte.options.declare import argument, group, option
from halfbyte.options.shared import Placement, RecipeChanges, recipe_option

StageName = Literal["quantize", "audit", "loops", "compare", "scripts", "source", "serve", "probe", "eval", "bench",
                    "verdict", "provenance", "card", "report", "publish"]  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseOptions:
    """Options of `halfbyte release`."""

    source: Path = argument("SRC")
    out_folder: Path = argument("OUT")
    recipe: str = recipe_option(required=True)
    changes: RecipeChanges = group(RecipeChanges)
    placement: Placement = group(Placement)
    url: str | None = option("--url", help="Use this running server for OUT instead of starting an engine.")
    reference_url: str | None = option(
        "--reference-url", metavar="URL", help="Running server of the source to compare with."
    )
    again: tuple[StageName, ...] = option(
        "--again",
        default=(),
        metavar="STAGE",
        help="Run this stage again although it is done; repeatable.",
    )
    stop_after: StageName | None = option("--stop-after", metavar="STAGE", help="Stop after this stage.")
    force: bool = option("--force", default=False, help="Publish without ACCEPT. release.json and the card say so.")
    dry_run: bool = option(
        "--dry-run", default=False, help="List the stages with their commands and requirements, and exit."
    )
