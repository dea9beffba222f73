"""Options of the commands that describe and upload a checkpoint: card, report, publish."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from halfbyte.options.declare import argument, option

_REPO = r"^[^/\s]+/[^/\s]+$"


@dataclass(frozen=True, slots=True, kw_only=True)
class CardOptions:
    """Options of `halfbyte card`."""

    out_folder: Path = argument("OUT")
    repo: str | None = option(
        "--repo",
        metavar="ORG/NAME",
        help="Target repository on the Hub.",
        pattern=_REPO,
        recipe="the repository on the Hub; default: that of 'publish'",
    )
    name: str | None = option(
        "--name",
        metavar="NAME",
        help="Title of the card.  [default: NAME of --repo, or SOURCE-FORMAT]",
        recipe="the title; default: the source's name and the format",
    )
    base_model: str | None = option(
        "--base-model",
        metavar="NAME",
        help="The source's name on the Hub, if no file states it.",
        recipe="the source's name on the Hub",
    )
    license: str | None = option(
        "--license",
        metavar="NAME",
        help="License, if the source's card states none.",
        recipe="the license, if the source's card does not state one",
    )
    quantized_by: str | None = option(
        "--quantized-by",
        metavar="NAME",
        help="Publisher of this checkpoint.",
        recipe="the person or organization that ran halfbyte",
    )
    gpus: str | None = option(
        "--gpus", metavar="NxGPU", kind="gpus", help="GPUs of the serving commands, if `serve --write` wrote none."
    )
    force: bool = option("--force", default=False, help="Also replace a hand-written README.md.")


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishOptions:
    """Options of `halfbyte publish`."""

    out_folder: Path = argument("OUT")
    repo: str = argument("REPO", pattern=_REPO, recipe="the repository on the Hub, as organization/name")
    dry_run: bool = option(
        "--dry-run", default=False, help="Check and list the files to upload, without network access."
    )
    private: bool = option(
        "--private", default=False, help="Create private repositories.", recipe="true for a private repository"
    )
    gated: Literal["auto", "manual"] | None = option("--gated", help="Gate access: granted automatically or manually.")
    traces: str | None = option(
        "--traces", metavar="DATASET_REPO", help="Upload probe traces and pruning artifacts to this dataset."
    )
    revision: str = option("--revision", default="main", metavar="BRANCH", help="Branch; created if missing.")
    message: str | None = option(
        "-m", "--message", metavar="TEXT", help="Commit message.  [default: the plan's fingerprint]"
    )
    force: bool = option("--force", default=False, help="Publish without ACCEPT. The card must say so.")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportOptions:
    """Options of `halfbyte report`."""

    out_folder: Path = argument("OUT")
    open: bool = option("--open", default=False, help="Open the report in a browser.")
