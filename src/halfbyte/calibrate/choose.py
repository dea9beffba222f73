"""Statistics that are measured: on the way of a run, or alone. Those of a file are in `given.py`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from halfbyte.ahead import Ahead
from halfbyte.calibrate.given import Say, Statistics
from halfbyte.calibrate.layers import layer_nbytes, measured_layers, tensors_by_layer
from halfbyte.calibrate.report import Report, report
from halfbyte.calibrate.stats import LayerStats
from halfbyte.calibrate.store import Store
from halfbyte.calibrate.stream import prepare
from halfbyte.models.model import Model
from halfbyte.plan.manifest import Plan
from halfbyte.recipe.decisions import Recipe
from halfbyte.source.checkpoint import Checkpoint
from halfbyte.source.hold import HoldingReader
from halfbyte.source.read import Stamps

if TYPE_CHECKING:
    from halfbyte.cuda.measure import OnDevice

CPU = "cpu"


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
    """Measure while the checkpoint is read."""
    calibration = prepare(checkpoint, layers, recipe, weights, device=device)
    store = Store(folder, calibration.about, layers)
    store.check()

    def run(
        reader: HoldingReader, threads: int | None, say: Say, unwritten: Collection[int]
    ) -> Iterator[tuple[int, LayerStats]]:
        store.begin()
        tokens, (rows, length) = sum(calibration.about["domains"].values()), calibration.about["rows"]
        say(f"{tokens:,} tokens in {rows} rows of {length}")
        return measured_layers(calibration, store, model, reader=reader, threads=threads, say=say, unwritten=unwritten)

    return Statistics(calibration.about, None, run, calibration, store)


@dataclass(frozen=True, slots=True, eq=False)
class Alone:
    """A measurement without a checkpoint to write."""

    about: Mapping[str, Any]
    missing_nbytes: int  # what it will take of the disk, besides the statistics themselves
    ahead: Ahead
    run: Callable[[int | None, Callable[[str, int, int], None]], Report]


def measure_alone(  # noqa: PLR0913 - keyword-only at the end
    checkpoint: Checkpoint,
    model: Model,
    recipe: Recipe,
    weights: Mapping[str, str],
    folder: Path,
    layers: int,
    *,
    seen: Stamps,
    device: str = CPU,
    device_memory: int | None = None,
) -> Alone:
    """Prepare to measure layer after layer; what a device cannot do is refused now, before the data are read."""
    on_device = None
    if device != CPU:
        on_device = _measures_on_device(Plan(checkpoint, model, recipe, (), (), layers), device, device_memory)
    found = measured_here(checkpoint, model, recipe, weights, folder, layers, device=device)
    if on_device is not None:
        on_device.check(found)
    sizes, ahead = layer_nbytes(model)[:layers], _ahead(checkpoint, model, found, layers)

    def run(threads: int | None, say: Callable[[str, int, int], None]) -> Report:
        measured: dict[int, LayerStats] = {}

        def tell(what: str) -> None:
            ahead.measured(measured)
            say(what, sum(sizes[: len(measured)]), sum(sizes))

        with ahead:
            ahead.begin({}, tell)
            if on_device is not None:
                on_device.run(found, folder, measured, tell)
            else:
                with HoldingReader(checkpoint, seen) as reader:
                    for layer, stats in found.layers(reader, threads, tell, ()):
                        measured[layer] = stats
                        ahead.measured({layer})
        tell("measured all layers")
        return report(measured, recipe.quantize.input_scale if recipe.quantize else None)

    return Alone(found.about, found.missing_nbytes, ahead, run)


def _ahead(checkpoint: Checkpoint, model: Model, found: Statistics, layers: int) -> Ahead:
    """Return what fetches the layers that are not measured; should some of these be missing, they come when read."""
    assert found.store is not None
    first = layers if found.store.is_whole else max(found.store.hidden_layers(), default=0)
    shards = [{info.shard for info in infos} for infos in tensors_by_layer(model)[:layers]]
    embedding = next(info.shard for role, info in model.tensors() if role == "embed")
    return Ahead.of_layers(checkpoint, shards, embedding, first)


def _measures_on_device(nothing: Plan, device: str, limit: int | None) -> OnDevice:
    from halfbyte.cuda.measure import OnDevice  # noqa: PLC0415 - only those who have one pay for it

    return OnDevice(nothing, device, limit)
