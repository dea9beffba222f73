"""Where the statistics of a run come from: measured on the way, or given in a file."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from halfbyte.calibrate.layers import layer_nbytes, measured_layers
from halfbyte.calibrate.report import Report, report
from halfbyte.calibrate.stats import LayerStats
from halfbyte.calibrate.store import Store, read_stats, stats_file
from halfbyte.calibrate.stream import Calibration, prepare, source_digest
from halfbyte.errors import UsageError
from halfbyte.models.model import Model
from halfbyte.recipe_schema import InputScale, Recipe
from halfbyte.source.checkpoint import Checkpoint
from halfbyte.source.hold import HoldingReader

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, eq=False)
class Statistics:
    """Layer after layer, and what they are of; two runs with the same `about` give the same bytes."""

    about: Mapping[str, Any]
    file: bytes | None  # the statistics themselves, where they were given: they are kept beside the weights
    layers: Callable[[HoldingReader, int | None, Say], Iterator[tuple[int, LayerStats]]]
    calibration: Calibration | None = None  # what is measured here, and where it is kept meanwhile
    store: Store | None = None


def measured_here(  # noqa: PLR0913 - keyword-only at the end
    checkpoint: Checkpoint,
    model: Model,
    recipe: Recipe,
    weights: Mapping[str, str],
    folder: Path,
    layers: int,
    *,
    device: str = "cpu",
) -> Statistics:
    """Measure while the checkpoint is read."""
    calibration = prepare(checkpoint, layers, recipe, weights, device=device)
    store = Store(folder, calibration.about)
    store.check()

    def run(reader: HoldingReader, threads: int | None, say: Say) -> Iterator[tuple[int, LayerStats]]:
        store.begin()
        tokens, (rows, length) = sum(calibration.about["domains"].values()), calibration.about["rows"]
        say(f"{tokens:,} tokens in {rows} rows of {length}")
        return measured_layers(calibration, store, model, layers, reader=reader, threads=threads, say=say)

    return Statistics(calibration.about, None, run, calibration, store)


@dataclass(frozen=True, slots=True, eq=False)
class Alone:
    """A measurement without a checkpoint to write."""

    about: Mapping[str, Any]
    run: Callable[[int | None, Callable[[str, int, int], None]], Report]


def measure_alone(
    checkpoint: Checkpoint, model: Model, recipe: Recipe, weights: Mapping[str, str], folder: Path, layers: int
) -> Alone:
    """Prepare to measure layer after layer."""
    found = measured_here(checkpoint, model, recipe, weights, folder, layers)
    sizes = layer_nbytes(model)[:layers]

    def run(threads: int | None, say: Callable[[str, int, int], None]) -> Report:
        measured: dict[int, LayerStats] = {}

        def tell(what: str) -> None:
            say(what, sum(sizes[: len(measured)]), sum(sizes))

        with HoldingReader(checkpoint) as reader:
            for layer, stats in found.layers(reader, threads, tell):
                measured[layer] = stats
        tell("measured all layers")
        return report(measured, recipe.quantize.input_scale if recipe.quantize else None)

    return Alone(found.about, run)


def given(path: Path, weights: Mapping[str, str], layers: int, rule: InputScale | None = None) -> Statistics:
    """Take statistics that were measured before, on these weights, with all that the recipe's rule asks for."""
    about, found = read_stats(path)
    if about.get("source") != source_digest(weights):
        fix = "measure this checkpoint: halfbyte calibrate SRC -r RECIPE -o STATS"
        raise UsageError("these statistics were measured on other weights", where=str(path), fix=fix)
    missing = [layer for layer in range(layers) if layer not in found]
    if missing:
        raise UsageError(f"these statistics have no layer {missing[0]}", where=str(path), fix="measure all layers")
    _refuse_unmeasured(found, rule, str(path))

    def run(_reader: HoldingReader, _threads: int | None, _say: Say) -> Iterator[tuple[int, LayerStats]]:
        yield from ((layer, found[layer]) for layer in range(layers))

    return Statistics(about, stats_file(path).read_bytes(), run)


def _refuse_unmeasured(layers: Mapping[int, LayerStats], rule: InputScale | None, where: str) -> None:
    """The backstop that runs experts on all tokens needs that done; said now, not in the middle of a run."""
    if rule is None or rule.backstop != "all_experts":
        return
    for layer, stats in layers.items():
        experts = stats.experts
        if experts is not None and ((experts.seen < (rule.min_tokens or 0)) & (experts.all_down_amax == 0)).any():
            what = f"these statistics have experts in layer {layer} that the backstop wants to see on all tokens"
            fix = f"measure with backstop all_experts and min_tokens {rule.min_tokens} or more"
            raise UsageError(what, where=where, fix=fix)
