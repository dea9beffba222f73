"""Estimate the duration of each stage of a release from measured times.

The times come from earlier runs of this output, or from the newest release of the same recipe in a sibling folder. A
probe's budget is its upper bound. A stage with none of these has no estimate.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path

from halfbyte.checkpoint.output_folder import FOLDER
from halfbyte.errors import HalfbyteError
from halfbyte.evidence.release import Release, StageRecord
from halfbyte.probe.budget import parse_budget
from halfbyte.release.record import read_records, read_release
from halfbyte.release.stages import VERDICT, Stage
from halfbyte.release.status import read_status

_BUDGET = "--budget"


def expected_seconds(out: Path, stages: Sequence[Stage], recipe: str) -> dict[str, float]:
    """Return the expected seconds of each stage that has an estimate."""
    seconds = {VERDICT: 0.0} | {stage.name: budget for stage in stages if (budget := _budget(stage)) is not None}
    for folder in (*_siblings(out, recipe), out):
        seconds |= _times(read_records(folder))
    return {stage.name: seconds[stage.name] for stage in stages if stage.name in seconds}


def quantize_seconds_left(out: Path) -> float | None:
    """Return the remaining time of the running `quantize` from its journal; None until a rate is known."""
    with contextlib.suppress(HalfbyteError, OSError, ValueError, KeyError):
        return read_status(out).eta_seconds
    return None


def _siblings(out: Path, recipe: str) -> list[Path]:
    """Return the sibling folder with the newest release of a recipe, if any."""
    here = out.absolute()
    with contextlib.suppress(OSError):
        files = [path for path in here.parent.glob(f"*/{FOLDER}/{Release.file}") if path.parents[1] != here]
        newest = sorted(files, key=lambda path: path.stat().st_mtime, reverse=True)
        folders = (path.parents[1] for path in newest)
        releases = ((folder, read_release(folder)) for folder in folders)
        return [folder for folder, release in releases if release is not None and release.recipe == recipe][:1]
    return []


def _times(records: Mapping[str, StageRecord]) -> dict[str, float]:
    return {
        name: float(record.seconds)
        for name, record in records.items()
        if record.state in ("done", "kept") and record.seconds is not None and record.seconds >= 0
    }


def _budget(stage: Stage) -> float | None:
    """Return the budget of a probe in seconds."""
    if _BUDGET not in stage.words:
        return None
    with contextlib.suppress(HalfbyteError):
        return parse_budget(str(stage.words[stage.words.index(_BUDGET) + 1]))
    return None
