"""Show the progress of hashing: a bar on a terminal, occasional lines with rate and time left otherwise."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from halfbyte.checkpoint.folder import CONFIG
from halfbyte.checkpoint.hashing import HashProgress
from halfbyte.checkpoint.output_folder import FOLDER
from halfbyte.cli.pipeline_output import duration
from halfbyte.errors import CheckpointError
from halfbyte.evidence.measured_files import MEASURED, content, output_of
from halfbyte.ui.console import Bar, Output
from halfbyte.ui.units import size

_LINE_EVERY_S = 10.0
_SHORT_S = 2.0  # no lines before


def hashed(out: Output, folder: Path) -> dict[str, Any]:
    """Hash a checkpoint's files with a progress bar, and return the entry for a result file."""
    try:
        with out.progress("hashing the checkpoint") as bar:
            return {MEASURED: content(folder, watched(bar, "hashed"))}
    except CheckpointError:  # reported when the checkpoint is read
        return {}


def hash_output(out: Output, folder: Path) -> None:
    """Hash the files of an output that are not yet hashed, so that reading its evidence is fast."""
    if (folder / FOLDER).is_dir() and (folder / CONFIG).is_file():
        hashed(out, folder)


def hash_served(out: Output, result: Path) -> None:
    """Hash the output behind a measured server, before the first request. See measured_files.output_of."""
    if (folder := output_of(result)) is not None:
        hashed(out, folder)


def watched(bar: Bar, verb: str) -> Callable[[HashProgress], None]:
    """Return the callback that shows the progress of hashing."""
    last_line_s = 0.0

    def show(step: HashProgress) -> None:
        nonlocal last_line_s
        bar.at(step.done_nbytes, step.all_nbytes)
        if step.seconds - last_line_s >= (_LINE_EVERY_S if last_line_s else _SHORT_S):
            last_line_s = step.seconds
            bar.step(line(verb, step), step.done_nbytes, step.all_nbytes)

    return show


def line(verb: str, step: HashProgress) -> str:
    """Return a line with the progress of hashing."""
    rate = step.done_nbytes / step.seconds if step.seconds else 0.0
    left = f"{duration((step.all_nbytes - step.done_nbytes) / rate)} left" if rate else "time left unknown"
    return f"{verb}  {size(step.done_nbytes)} of {size(step.all_nbytes)}  {size(int(rate))}/s, {left}"
