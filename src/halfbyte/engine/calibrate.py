"""Collect activation statistics without writing a checkpoint; several recipes can share them."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from halfbyte.calibrate.store import ABOUT
from halfbyte.checkpoint.atomic_write import resumable_error
from halfbyte.checkpoint.folder import Checkpoint, open_checkpoint
from halfbyte.checkpoint.identity import identity
from halfbyte.checkpoint.output_folder import has_whole_files, locked_results, refuse_nested, without_parts
from halfbyte.checkpoint.reader import shard_stamps
from halfbyte.engine.backends.support import Request, Resources, refuse_unsupported
from halfbyte.engine.prefetch import FETCHED, refuse_other_version, write_origin
from halfbyte.engine.runner import Progress
from halfbyte.errors import InterruptedRunError, UsageError
from halfbyte.families.config_agreement import refuse_other_config
from halfbyte.families.model import describe
from halfbyte.machine.resources import refuse_few_addresses
from halfbyte.plan.manifest import refuse_more_layers
from halfbyte.recipe.decisions import Recipe

if TYPE_CHECKING:
    from halfbyte.calibrate.report import Report


_SPARE_NBYTES = 1 << 26  # two copies of the statistics


@dataclass(frozen=True, slots=True)
class Measured:
    """The result of a calibration."""

    folder: Path
    about: Mapping[str, Any]
    coverage: Report
    seconds: float


def calibrate(  # noqa: PLR0913 - keyword-only; only `layers` and `device` affect the statistics
    source: Path | Checkpoint,
    folder: Path,
    recipe: Recipe,
    *,
    layers: int | None = None,
    threads: int | None = None,
    device: str = "cpu",
    device_memory: int | None = None,
    progress: Callable[[Progress], None] | None = None,
    begins: Callable[[str], None] = lambda what: None,
) -> Measured:
    """Collect activation statistics without writing a checkpoint; the same call resumes an interrupted run."""
    start = time.monotonic()
    refuse_nested(source if isinstance(source, Path) else source.root, folder)
    if recipe.calibrate is None:
        fix = "use a recipe that calibrates, such as kimi-k2.6-nvfp4-nvidia"
        raise UsageError(f"recipe '{recipe.name}' has no calibration data", where="-r", fix=fix)
    resources = Resources(threads, device, device_memory)
    refuse_unsupported(Request(recipe=recipe, resources=resources, measures=True, writes=False))
    refuse_few_addresses(0, threads, measures=True)
    checkpoint = open_checkpoint(source) if isinstance(source, Path) else source
    model = describe(checkpoint)
    refuse_other_config(checkpoint, model)
    from halfbyte.engine.measure_statistics import measure_alone  # noqa: PLC0415 - imports torch

    refuse_more_layers(model, layers)
    all_layers = layers or model.layers
    seen, weights = (
        shard_stamps(checkpoint),
        identity(checkpoint),
    )  # in this order, so that a change in between is detected
    measurement = measure_alone(
        checkpoint, model, recipe, weights, folder, all_layers, seen=seen, device=device, device_memory=device_memory
    )
    _refuse_foreign(folder)
    refuse_other_version(folder, checkpoint)
    if measurement.missing_nbytes:
        measurement.ahead.refuse_full(folder, measurement.missing_nbytes + _SPARE_NBYTES, 0)

    def report(message: str, done: int, total: int) -> None:
        if progress is not None:
            progress(Progress(done, total, time.monotonic() - start, message))

    begins("measuring activations, layer by layer")
    with _explain_failures(folder), locked_results(folder), without_parts(folder):
        write_origin(folder, checkpoint)
        coverage = measurement.run(threads, report)
    return Measured(folder, measurement.about, coverage, time.monotonic() - start)


def _refuse_foreign(folder: Path) -> None:
    """Raise if `folder` holds anything but statistics."""
    if folder.exists() and (
        not folder.is_dir() or (has_whole_files(folder, (FETCHED,)) and not (folder / ABOUT).exists())
    ):
        raise UsageError("not a statistics folder", where=str(folder), fix="use a new folder")


@contextmanager
def _explain_failures(folder: Path) -> Generator[None]:
    """Convert interrupts and OS errors to errors with instructions for resuming; measured layers are on disk."""
    try:
        yield
    except KeyboardInterrupt:
        what = "interrupted; the measured layers are kept"
        raise InterruptedRunError(what, where=str(folder), fix="run the same command again to resume") from None
    except OSError as error:
        raise resumable_error(error, folder, "measured layers") from None
