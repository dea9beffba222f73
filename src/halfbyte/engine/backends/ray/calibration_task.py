"""Calibration task of a Ray worker: run one part of the rows through one layer and return its statistics.

A part always has `SUM_ROWS` rows, so the sums are the same for any number of machines. Hidden states are on shared
storage between layers, so any worker can run the next layer.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from halfbyte.calibrate.layers import tensors_by_layer
from halfbyte.calibrate.store import Store, hidden_pieces, load_hidden_file
from halfbyte.calibrate.stream import Calibration, Stream
from halfbyte.calibrate.token_rows import Rows
from halfbyte.checkpoint.atomic_write import PART, write_whole
from halfbyte.checkpoint.output_folder import FOLDER
from halfbyte.checkpoint.reader import CachingReader
from halfbyte.engine.backends.ray.run_spec import RunSpec
from halfbyte.engine.backends.ray.worker import (
    SETTLE_SECONDS,
    TaskResult,
    as_result,
    cached,
    exit_when_stale,
    node_name,
    open_plan,
    refuse_stale,
)
from halfbyte.errors import MachineError
from halfbyte.families.registry import text_model
from halfbyte.families.weights import Weights
from halfbyte.plan.manifest import Plan

if TYPE_CHECKING:
    from halfbyte.calibrate.stats import LayerStats

STATS_ENTRY = "stats"


@dataclass(frozen=True, slots=True, eq=False)
class PartSpec:
    """One part of the calibration rows."""

    number: int
    rows: Rows  # of this part only
    begin: int  # index of its first row
    about: Mapping[str, Any]
    public: bool
    layers: int

    @property
    def slice(self) -> slice:
        """Return the range of its rows."""
        return slice(self.begin, self.begin + len(self.rows.tokens))


class _Layer:
    """The source, with the last used layer cached for other parts of the rows."""

    def __init__(self, spec: RunSpec) -> None:
        self.plan: Plan = open_plan(spec)
        self.reader = CachingReader(self.plan.checkpoint, spec.seen)
        self._tensors = tensors_by_layer(self.plan.model)
        self._held: int | None = None

    def hold(self, layer: int) -> None:
        """Read a layer into memory, unless it is cached."""
        if self._held != layer:
            if self._held is not None:
                self.reader.release(self._tensors[self._held])
            self._held = None
            self.reader.hold(self._tensors[layer])
            self._held = layer


def measure_part(spec: RunSpec, part: PartSpec, layer: int, attempt: int, threads: int) -> TaskResult:
    """Run a part of the rows through a layer; return its statistics and store the hidden states for the next layer."""
    return as_result(lambda: {STATS_ENTRY: _measure(spec, part, layer, attempt, threads)})


def _measure(spec: RunSpec, part: PartSpec, layer: int, attempt: int, threads: int) -> LayerStats:
    refuse_stale(spec)
    with exit_when_stale(spec):
        source = cached(f"{spec.token} layers", lambda: _Layer(spec))
        source.hold(layer)
        plan, store = source.plan, Store(stats_folder(spec), part.about, part.layers)
        rule = plan.recipe.quantize.input_scale if plan.recipe.quantize else None
        text = text_model(plan.checkpoint.config)
        calibration = Calibration(text, part.rows, rule, part.about, public=part.public)
        stream = Stream(calibration, Weights(plan.model, source.reader), threads)
        if layer == 0:
            stream.start()
        else:
            stream.hidden = _hidden(store, part, layer)
        stats = stream.through(layer)
        source.reader.refuse_changes()
        path = store.hidden_file(layer + 1, part.number)
        marked = path.with_name(f"{path.name}.{spec.token}-{attempt}{PART}")  # another attempt may be writing it
        write_whole(marked, *hidden_pieces(stream.hidden, path.name))
        marked.replace(path)
        return stats


def _hidden(store: Store, part: PartSpec, layer: int) -> torch.Tensor:
    """Return the hidden states before a layer, stored per part, or in one file by an earlier local run."""
    deadline = time.monotonic() + SETTLE_SECONDS
    while True:
        hidden = load_hidden_file(store.hidden_file(layer, part.number))
        if hidden is None:
            hidden = load_hidden_file(store.hidden_file(layer), part.slice)
        if hidden is not None:
            return hidden
        if time.monotonic() > deadline:
            what = f"node {node_name()} cannot see the hidden states before layer {layer}"
            fix = "use a folder on storage that all nodes share"
            raise MachineError(what, where=str(store.hidden_file(layer, part.number)), fix=fix)
        time.sleep(0.2)


def stats_folder(spec: RunSpec) -> Path:
    """Return the folder of the statistics during calibration."""
    from halfbyte.engine.pipeline import STATS  # noqa: PLC0415 - avoids an import cycle

    return Path(spec.out) / FOLDER / STATS
