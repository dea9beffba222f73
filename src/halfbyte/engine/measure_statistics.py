"""Measure statistics, during a quantization run or standalone. `calibrate.store` loads them from a file."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from halfbyte.calibrate.layers import layer_nbytes, measured_layers, tensors_by_layer
from halfbyte.calibrate.report import Report, report
from halfbyte.calibrate.stats import LayerStats
from halfbyte.calibrate.store import Say, Statistics, Store
from halfbyte.calibrate.stream import prepare
from halfbyte.checkpoint.folder import Checkpoint
from halfbyte.checkpoint.reader import CachingReader, ShardStamps
from halfbyte.engine.prefetch import Prefetcher
from halfbyte.families.model import Model
from halfbyte.machine.device_option import CPU
from halfbyte.plan.manifest import Plan
from halfbyte.recipe.decisions import Recipe

if TYPE_CHECKING:
    from halfbyte.engine.backends.cuda.backend import OnDevice


def measured_here(  # noqa: PLR0913 - keyword-only at the end
    checkpoint: Checkpoint,
    model: Model,
    recipe: Recipe,
    weights: Mapping[str, str],
    folder: Path,
    layers: int,
    *,
    device: str = CPU,
) -> Statistics:
    """Prepare to measure statistics while the checkpoint is read."""
    calibration = prepare(checkpoint, layers, recipe, weights, device=device)
    store = Store(folder, calibration.about, layers)
    store.check()

    def run(
        reader: CachingReader, threads: int | None, say: Say, unwritten: Collection[int]
    ) -> Iterator[tuple[int, LayerStats]]:
        store.begin()
        tokens, (rows, length) = sum(calibration.about["domains"].values()), calibration.about["rows"]
        say(f"{tokens:,} tokens in {rows} rows of {length}")
        return measured_layers(calibration, store, model, reader=reader, threads=threads, say=say, unwritten=unwritten)

    return Statistics(calibration.about, None, run, calibration, store)


@dataclass(frozen=True, slots=True, eq=False)
class StandaloneMeasurement:
    """A measurement without an output checkpoint."""

    about: Mapping[str, Any]
    missing_nbytes: int  # disk space needed in addition to the statistics themselves
    ahead: Prefetcher
    run: Callable[[int | None, Callable[[str, int, int], None]], Report]


def measure_alone(  # noqa: PLR0913 - keyword-only at the end
    checkpoint: Checkpoint,
    model: Model,
    recipe: Recipe,
    weights: Mapping[str, str],
    folder: Path,
    layers: int,
    *,
    seen: ShardStamps,
    device: str = CPU,
    device_memory: int | None = None,
) -> StandaloneMeasurement:
    """Prepare a standalone measurement; raise errors for unsupported devices before the data is read."""
    on_device = None
    if device != CPU:
        on_device = _measures_on_device(Plan(checkpoint, model, recipe, (), (), layers), device, device_memory)
    statistics = measured_here(checkpoint, model, recipe, weights, folder, layers, device=device)
    if on_device is not None:
        on_device.check(statistics)
    sizes, prefetch = layer_nbytes(model)[:layers], _prefetch(checkpoint, model, statistics, layers)

    def run(threads: int | None, say: Callable[[str, int, int], None]) -> Report:
        measured: dict[int, LayerStats] = {}

        def report_progress(message: str) -> None:
            prefetch.measured(measured)
            say(message, sum(sizes[: len(measured)]), sum(sizes))

        with prefetch:
            prefetch.begin({}, report_progress)
            if on_device is not None:
                on_device.run(statistics, folder, measured, report_progress)
            else:
                with CachingReader(checkpoint, seen) as reader:
                    for layer, stats in statistics.layers(reader, threads, report_progress, ()):
                        measured[layer] = replace(stats, hessians=None)  # not saved, and gigabytes per layer
                        prefetch.measured({layer})
        report_progress("measured all layers")
        return report(measured, recipe.quantize.input_scale if recipe.quantize else None)

    return StandaloneMeasurement(statistics.about, statistics.missing_nbytes, prefetch, run)


def _prefetch(checkpoint: Checkpoint, model: Model, statistics: Statistics, layers: int) -> Prefetcher:
    """Return a prefetcher for the layers not yet measured; other layers are fetched when read."""
    assert statistics.store is not None
    first = statistics.store.resume(load=False).next_layer
    shards = [{info.shard for info in infos} for infos in tensors_by_layer(model)[:layers]]
    embedding = next(info.shard for role, info in model.tensors() if role == "embed")
    return Prefetcher.of_layers(checkpoint, shards, embedding, first)


def _measures_on_device(plan: Plan, device: str, limit: int | None) -> OnDevice:
    from halfbyte.engine.backends.cuda.backend import OnDevice  # noqa: PLC0415 - only imported for GPUs

    return OnDevice(plan, device, limit)
