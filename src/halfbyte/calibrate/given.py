"""The statistics of a run, and those that are given in a file: they need neither the model's forward nor torch."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from halfbyte.calibrate.stats import LayerStats
from halfbyte.calibrate.store import Store, read_stats, stats_file
from halfbyte.errors import UsageError
from halfbyte.prune.record import quantized_from
from halfbyte.recipe.decisions import InputScale
from halfbyte.source.checkpoint import Checkpoint
from halfbyte.source.hold import HoldingReader
from halfbyte.source.identity import config_name, short_name

if TYPE_CHECKING:
    from halfbyte.calibrate.stream import Calibration

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, eq=False)
class Statistics:
    """Layer after layer, and what they are of; two runs with the same `about` give the same bytes."""

    about: Mapping[str, Any]
    file: bytes | None  # the statistics themselves, where they were given: they are kept beside the weights
    layers: Callable[[HoldingReader, int | None, Say, Collection[int]], Iterator[tuple[int, LayerStats]]]
    calibration: Calibration | None = None  # what is measured here, and where it is kept meanwhile
    store: Store | None = None

    @property
    def missing_nbytes(self) -> int:
        """Return what measuring will take of the disk, besides the statistics themselves."""
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
    """Take statistics that were measured before, on this model, with all that the recipe's rule asks for.

    Where they only choose experts, those of the checkpoint that this one was quantized from do as well.
    """
    about, found = read_stats(path)
    names = {short_name(weights), quantized_from(checkpoint) if choosing else None} - {None}
    _refuse_other_model(about, checkpoint, names, choosing=choosing, where=str(path))
    missing = [layer for layer in range(layers) if layer not in found]
    if missing:
        raise UsageError(f"these statistics have no layer {missing[0]}", where=str(path), fix="measure all layers")
    _refuse_unmeasured(found, rule, str(path))

    def run(
        _reader: HoldingReader, _threads: int | None, _say: Say, _unwritten: Collection[int]
    ) -> Iterator[tuple[int, LayerStats]]:
        yield from ((layer, found[layer]) for layer in range(layers))

    return Statistics(about, stats_file(path).read_bytes(), run)


def _refuse_other_model(
    about: Mapping[str, Any], checkpoint: Checkpoint, names: Collection[str | None], *, choosing: bool, where: str
) -> None:
    """The same weights and the same config.json: either decides every activation."""
    measure = "halfbyte calibrate SRC -r RECIPE -o STATS"
    if about.get("source") not in names:
        what, fix = "these statistics were measured on other weights", f"measure this checkpoint: {measure}"
        if choosing:
            fix += "; or, if they are of the same model stored otherwise, make a plan there (halfbyte prune -o FILE)"
            fix += " and apply it here: --plan FILE"
    elif "config" not in about:
        what = "these statistics do not say under which config.json they were measured: an earlier version wrote them"
        fix = f"measure again: {measure}"
    elif about["config"] != config_name(checkpoint.config):
        what = "these statistics were measured under another config.json"
        fix = f"restore that config.json, or measure again: {measure}"
    else:
        return
    raise UsageError(what, where=where, fix=fix)


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
