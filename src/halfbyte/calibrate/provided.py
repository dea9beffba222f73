"""Calibration statistics of a run, and loading them from a file, without torch."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from halfbyte.calibrate.stats import LayerStats
from halfbyte.calibrate.store import Store, read_stats, stats_file
from halfbyte.checkpoint.folder import Checkpoint
from halfbyte.checkpoint.identity import config_name, short_name
from halfbyte.checkpoint.reader import CachingReader
from halfbyte.errors import UsageError
from halfbyte.plan.prune_record import quantized_from
from halfbyte.recipe.decisions import InputScale

if TYPE_CHECKING:
    from halfbyte.calibrate.stream import Calibration

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, eq=False)
class Statistics:
    """Statistics by layer and their description; runs with equal `about` give equal bytes."""

    about: Mapping[str, Any]
    file: bytes | None  # the statistics file, if loaded from one, to be copied into the output folder
    layers: Callable[[CachingReader, int | None, Say, Collection[int]], Iterator[tuple[int, LayerStats]]]
    calibration: Calibration | None = None  # set together with `store` if the statistics are measured in this run
    store: Store | None = None

    @property
    def missing_nbytes(self) -> int:
        """Return the disk space that measuring needs in addition to the statistics themselves."""
        if self.calibration is None or self.store is None:
            return 0
        return self.store.missing_nbytes(self.calibration.hidden_nbytes)


def given(
    path: Path,
    checkpoint: Checkpoint,
    weights: Mapping[str, str],
    layers: int,
    rule: InputScale | None = None,
    *,
    choosing: bool = False,
) -> Statistics:
    """Load statistics from a file; raise UsageError if they are of another model or insufficient for the recipe's rule.

    For choosing experts only, statistics of the checkpoint that this one was quantized from are accepted too.
    """
    about, stats = read_stats(path)
    names = {short_name(weights), quantized_from(checkpoint) if choosing else None} - {None}
    _refuse_other_model(about, checkpoint, names, choosing=choosing, where=str(path))
    missing = [layer for layer in range(layers) if layer not in stats]
    if missing:
        raise UsageError(f"these statistics lack layer {missing[0]}", where=str(path), fix="measure all layers")
    _refuse_unmeasured(stats, rule, str(path))

    def run(
        _reader: CachingReader, _threads: int | None, _say: Say, _unwritten: Collection[int]
    ) -> Iterator[tuple[int, LayerStats]]:
        yield from ((layer, stats[layer]) for layer in range(layers))

    return Statistics(about, stats_file(path).read_bytes(), run)


def _refuse_other_model(
    about: Mapping[str, Any], checkpoint: Checkpoint, names: Collection[str | None], *, choosing: bool, where: str
) -> None:
    """Raise UsageError unless the weights and config.json match, since both determine the activations."""
    measure = "halfbyte calibrate SRC -r RECIPE -o STATS"
    if about.get("source") not in names:
        what, fix = "these statistics were measured on other weights", f"measure this checkpoint: {measure}"
        if choosing:
            fix += "; or, for the same model in another format, create a plan there (halfbyte prune -o FILE)"
            fix += " and apply it here: --plan FILE"
    elif "config" not in about:
        what = "these statistics, written by an earlier version, do not identify their config.json"
        fix = f"measure again: {measure}"
    elif about["config"] != config_name(checkpoint.config):
        what = "these statistics were measured with another config.json"
        fix = f"restore that config.json, or measure again: {measure}"
    else:
        return
    raise UsageError(what, where=where, fix=fix)


def _refuse_unmeasured(layers: Mapping[int, LayerStats], rule: InputScale | None, where: str) -> None:
    """Raise UsageError if the all_experts backstop needs values that were not measured."""
    if rule is None or rule.backstop != "all_experts":
        return
    for layer, stats in layers.items():
        experts = stats.experts
        if experts is not None and ((experts.seen < (rule.min_tokens or 0)) & (experts.all_down_amax == 0)).any():
            what = f"these statistics lack the all-token values of experts in layer {layer} for backstop all_experts"
            fix = f"measure with backstop all_experts and min_tokens {rule.min_tokens} or more"
            raise UsageError(what, where=where, fix=fix)
