"""What a worker does of a calibration: run one part of the rows through one layer, and say what it measured.

A part has `SUM_ROWS` rows, whoever runs it, so the sums that are added are the same for any number of machines. Its
hidden states lie on the shared storage between layers: whichever worker comes next goes on with them.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from halfbyte.calibrate.layers import tensors_by_layer
from halfbyte.calibrate.rows import Rows
from halfbyte.calibrate.store import Store, hidden_pieces, load_hidden_file
from halfbyte.calibrate.stream import Calibration, Stream
from halfbyte.distributed.order import Order
from halfbyte.distributed.worker import (
    SETTLE_SECONDS,
    Answer,
    answered,
    kept,
    node_name,
    open_plan,
    refuse_ended,
    watched,
)
from halfbyte.errors import MachineError
from halfbyte.folders import FOLDER
from halfbyte.forward.config import text_model
from halfbyte.forward.weights import Weights
from halfbyte.plan.manifest import Plan
from halfbyte.source.hold import HoldingReader
from halfbyte.write import PART, write_whole

if TYPE_CHECKING:
    from halfbyte.calibrate.stats import LayerStats

STATS_ENTRY = "stats"


@dataclass(frozen=True, slots=True, eq=False)
class PartOrder:
    """Which rows, and what is measured on them."""

    number: int
    rows: Rows  # of this part alone
    begin: int  # its first row among all
    about: Mapping[str, Any]
    public: bool
    layers: int

    @property
    def slice(self) -> slice:
        """Return its rows among all."""
        return slice(self.begin, self.begin + len(self.rows.tokens))


class _Layer:
    """The source, with the layer that was asked for last in memory: another part of the rows may need it too."""

    def __init__(self, order: Order) -> None:
        self.plan: Plan = open_plan(order)
        self.reader = HoldingReader(self.plan.checkpoint, order.seen)
        self._tensors = tensors_by_layer(self.plan.model)
        self._held: int | None = None

    def hold(self, layer: int) -> None:
        """Read a layer, unless it is there."""
        if self._held != layer:
            if self._held is not None:
                self.reader.release(self._tensors[self._held])
            self._held = None
            self.reader.hold(self._tensors[layer])
            self._held = layer


def measure_part(order: Order, part: PartOrder, layer: int, attempt: int, threads: int) -> Answer:
    """Run a part of the rows through a layer; return what was measured, and leave hidden states for the next."""
    return answered(lambda: {STATS_ENTRY: _measure(order, part, layer, attempt, threads)})


def _measure(order: Order, part: PartOrder, layer: int, attempt: int, threads: int) -> LayerStats:
    refuse_ended(order)
    with watched(order):
        source = kept(f"{order.token} layers", lambda: _Layer(order))
        source.hold(layer)
        made, store = source.plan, Store(stats_folder(order), part.about, part.layers)
        rule = made.recipe.quantize.input_scale if made.recipe.quantize else None
        text = text_model(made.checkpoint.config)
        calibration = Calibration(text, part.rows, rule, part.about, public=part.public)
        stream = Stream(calibration, Weights(made.model, source.reader), threads)
        if layer == 0:
            stream.start()
        else:
            stream.hidden = _hidden(store, part, layer)
        stats = stream.through(layer)
        source.reader.refuse_changes()
        path = store.hidden_file(layer + 1, part.number)
        marked = path.with_name(f"{path.name}.{order.token}-{attempt}{PART}")  # another attempt may be at it
        write_whole(marked, *hidden_pieces(stream.hidden, path.name))
        marked.replace(path)
        return stats


def _hidden(store: Store, part: PartOrder, layer: int) -> torch.Tensor:
    """Return the hidden states before a layer, which lie here in parts, or together where a local run has begun."""
    end = time.monotonic() + SETTLE_SECONDS
    while True:
        found = load_hidden_file(store.hidden_file(layer, part.number))
        if found is None:
            found = load_hidden_file(store.hidden_file(layer), part.slice)
        if found is not None:
            return found
        if time.monotonic() > end:
            what = f"node {node_name()} cannot see the hidden states before layer {layer}"
            fix = "give a folder on storage that all nodes share"
            raise MachineError(what, where=str(store.hidden_file(layer, part.number)), fix=fix)
        time.sleep(0.2)


def stats_folder(order: Order) -> Path:
    """Return where statistics lie while they are made."""
    from halfbyte.pipeline import STATS  # noqa: PLC0415 - which imports all of this

    return Path(order.out) / FOLDER / STATS
