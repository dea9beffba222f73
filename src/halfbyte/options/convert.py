"""Options of the commands that make a checkpoint or statistics: quantize, calibrate, prune."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from halfbyte.options.declare import argument, group, option
from halfbyte.options.shared import (
    Placement,
    RecipeChanges,
    ShardCache,
    Upload,
    layers_option,
    ray_option,
    recipe_option,
    threads_option,
    verify_option,
)

PruneMethod = Literal[
    "reap",
    "reap_softmax",
    "reap_public",
    "reap_g2",
    "reap_l2",
    "frequency",
    "ean",
    "weighted_ean",
    "man",
    "msan",
]
PruneSelect = Literal["mean", "max_min"]


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizeOptions:
    """Options of `halfbyte quantize`."""

    source: str = argument("SOURCE")
    out_folder: Path = argument("OUT")
    recipe: str | None = recipe_option(required=False)
    plan: Path | None = option(
        "--plan", metavar="FILE", help="Instead of -r: a plan from `halfbyte plan -o`, which contains its recipe."
    )
    changes: RecipeChanges = group(RecipeChanges)
    stats: Path | None = option("--stats", help="Use statistics from `halfbyte calibrate`.")
    placement: Placement = group(Placement)
    ray: str | None = ray_option()
    threads: int | None = threads_option("Threads for reading, computing and writing.  [default: cores + 2]")
    verify: bool = verify_option()
    cache: ShardCache = group(ShardCache)
    upload: Upload = group(Upload)


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrateOptions:
    """Options of `halfbyte calibrate`."""

    source: str = argument("SOURCE")
    recipe: str = recipe_option(required=True)
    changes: RecipeChanges = group(RecipeChanges)
    folder: Path = option("-o", "--out", metavar="STATS", required=True, help="Folder for the statistics.")
    placement: Placement = group(Placement)
    threads: int | None = threads_option("Compute threads.  [default: cores]")
    verify: bool = verify_option("Compare downloaded files with their known checksums.")
    cache: ShardCache = group(ShardCache)


@dataclass(frozen=True, slots=True, kw_only=True)
class PruneOptions:
    """Options of `halfbyte prune`."""

    source: str = argument("SRC")
    out_folder: Path | None = argument("[OUT]", required=False)
    keep: int | None = option("--keep", least=1, help="Routed experts to keep in each layer.")
    drop: str | None = option(
        "--drop", metavar="SHARE", help="Instead of --keep: the share of experts to drop, e.g. 25%."
    )
    spread: bool | None = option(
        "--spread", help="Same total, more experts where they help most. Stock vLLM and SGLang cannot load it."
    )
    stats: Path | None = option("--stats", help="Statistics from `halfbyte calibrate`, measured on SRC.")
    data: tuple[str, ...] = option(
        "--data",
        default=(),
        metavar="DOMAIN=FILE[:COLUMNS]",
        help="Instead of --stats: measure on these texts while pruning.",
    )
    samples: int | None = option("--samples", least=1, help="Number of samples from --data.  [default: 1026]")
    length: int | None = option("--length", least=2, help="Tokens per row of --data.  [default: 2048]")
    plan: Path | None = option(
        "--plan",
        metavar="FILE",
        help="Use a prune-plan.json, edited or not, or a keep list. --stats adds its coverage.",
    )
    restore: int | None = option(
        "--restore", metavar="N", least=1, help="With --plan: restore the N best dropped experts of each layer."
    )
    method: PruneMethod | None = option("--method", "--criterion", help="Scoring criterion.  [default: reap]")
    select: PruneSelect | None = option(
        "--select",
        help="Mean score over domains, or the best worst-case domain.  [default: mean]",
    )
    blend: str | None = option("--blend", metavar="DOMAIN=WEIGHT,...", help="Weight of a token of each domain.")
    protect: bool | None = option("--protect/--no-protect", help="Always keep super experts.  [default: protect]")
    min_tokens: int | None = option(
        "--min-tokens", least=0, help="Keep experts that saw fewer tokens than this.  [default: 1]"
    )
    plan_only: Path | None = option(
        "-o", "--plan-only", metavar="FILE", kind="file", help="Write only the plan, for --plan."
    )
    keep_list: Path | None = option(
        "--keep-list",
        metavar="FILE",
        kind="file",
        help="Write the kept experts as a bare list, with or without OUT.",
    )
    form: Literal["by_layer", "counted", "in_order", "dropped"] | None = option(
        "--form", help="Format of --keep-list.  [default: by_layer]"
    )
    loops: int | None = option(
        "--loops",
        metavar="N",
        least=1,
        most=64,
        affects_output=False,
        help="Test OUT and SRC for loops on N open prompts.  [default: 16 if that takes seconds]",
    )
    no_loops: bool = option("--no-loops", default=False, affects_output=False, help="Skip the loop test.")
    layers: int | None = layers_option()
    shards: str = option("--shards", default="layers", metavar="SIZE", help="One shard per layer, or a size, e.g. 5GB.")
    ray: str | None = ray_option()
    threads: int | None = threads_option("Threads for reading and writing.  [default: cores + 2]")
    verify: bool = verify_option()
    cache: ShardCache = group(ShardCache)
    upload: Upload = group(Upload)
