"""Measure activations without writing a checkpoint: statistics that many recipes can use."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from halfbyte.ahead import FETCHED, refuse_other_version, write_origin
from halfbyte.calibrate.store import ABOUT
from halfbyte.errors import InterruptedRunError, UsageError
from halfbyte.folders import alone_measuring, has_whole_files, refuse_nested, without_parts
from halfbyte.machine.address_space import refuse_few_addresses
from halfbyte.models.declared import refuse_other_config
from halfbyte.models.model import describe
from halfbyte.plan.manifest import refuse_more_layers
from halfbyte.recipe.decisions import Recipe
from halfbyte.run import Progress
from halfbyte.source.checkpoint import Checkpoint, open_checkpoint
from halfbyte.source.identity import identity
from halfbyte.source.read import stamps
from halfbyte.write import cannot_go_on

if TYPE_CHECKING:
    from halfbyte.calibrate.report import Report


_SPARE_NBYTES = 1 << 26  # the statistics themselves, twice


@dataclass(frozen=True, slots=True)
class Measured:
    """What a calibration did."""

    folder: Path
    about: Mapping[str, Any]
    coverage: Report
    seconds: float


def calibrate(  # noqa: PLR0913 - keyword-only, and none of the options decides a byte but `layers` and `device`
    source: Path | Checkpoint,
    folder: Path,
    recipe: Recipe,
    *,
    layers: int | None = None,
    threads: int | None = None,
    device: str = "cpu",
    device_memory: int | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> Measured:
    """Measure activations without writing a checkpoint; the same call goes on where a killed one stopped."""
    begin = time.monotonic()
    refuse_nested(source if isinstance(source, Path) else source.root, folder)
    if recipe.calibrate is None:
        fix = "use a recipe that calibrates, such as kimi-k2.6-nvfp4-nvidia"
        raise UsageError(f"recipe '{recipe.name}' has no data to measure on", where="-r", fix=fix)
    refuse_few_addresses(0, threads, measures=True)
    checkpoint = open_checkpoint(source) if isinstance(source, Path) else source
    model = describe(checkpoint)
    refuse_other_config(checkpoint, model)
    from halfbyte.calibrate.choose import measure_alone  # noqa: PLC0415 - the other commands take no forward

    refuse_more_layers(model, layers)
    all_layers = layers or model.layers
    seen, weights = stamps(checkpoint), identity(checkpoint)  # in this order: a change between them counts
    measured = measure_alone(
        checkpoint, model, recipe, weights, folder, all_layers, seen=seen, device=device, device_memory=device_memory
    )
    _refuse_foreign(folder)
    refuse_other_version(folder, checkpoint)
    if measured.missing_nbytes:
        measured.ahead.refuse_full(folder, measured.missing_nbytes + _SPARE_NBYTES, 0)

    def say(what: str, done: int, total: int) -> None:
        if progress is not None:
            progress(Progress(done, total, time.monotonic() - begin, what))

    with _measuring(folder), alone_measuring(folder), without_parts(folder):
        write_origin(folder, checkpoint)
        coverage = measured.run(threads, say)
    return Measured(folder, measured.about, coverage, time.monotonic() - begin)


def _refuse_foreign(folder: Path) -> None:
    """Statistics go into a folder of their own."""
    if folder.exists() and (
        not folder.is_dir() or (has_whole_files(folder, (FETCHED,)) and not (folder / ABOUT).exists())
    ):
        raise UsageError("this is not a folder of statistics", where=str(folder), fix="give a new folder")


@contextmanager
def _measuring(folder: Path) -> Generator[None]:
    """Say how an interrupted measurement goes on; what is measured is on disk."""
    try:
        yield
    except KeyboardInterrupt:
        what = "stopped; the layers that were measured are kept"
        raise InterruptedRunError(what, where=str(folder), fix="run the same command again to go on") from None
    except OSError as error:
        raise cannot_go_on(error, folder, "measured layers") from None
