"""A calibration over many machines: each runs parts of the rows, and the driver adds what they measured, in order.

Layer after layer, as everywhere: the statistics are those of a local run to the last bit, because parts have the same
rows for any number of machines, and are added one after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from halfbyte.calibrate.given import Statistics
from halfbyte.calibrate.layers import layer_nbytes
from halfbyte.calibrate.stats import LayerStats, merge
from halfbyte.calibrate.store import Store
from halfbyte.calibrate.stream import Calibration
from halfbyte.calibrate.sums import SUM_ROWS
from halfbyte.cuda.shares import some_rows
from halfbyte.distributed.cluster import Node, nodes
from halfbyte.distributed.crew import Crew, Share
from halfbyte.distributed.part import STATS_ENTRY, PartOrder, measure_part
from halfbyte.plan.manifest import Plan
from halfbyte.write import PART

_EXPERT_COPIES = 4  # of an expert's weights that a thread holds: stored, and decoded as gate, up and down
_STATES = 6  # copies of a part's hidden states: before, after, what experts are given and return, and their sums


class Measuring:
    """One calibration; `order` is what Ray keeps of the run's order."""

    def __init__(self, ray: Any, order: Any, made: Plan, measured: Statistics, say: Callable[[str], None]) -> None:
        assert measured.calibration is not None
        assert measured.store is not None
        self._ray, self._order, self._made, self._say = ray, order, made, say
        self._of, self._store = measured.calibration, measured.store

    def layers(self, threads: int | None) -> Iterator[tuple[int, LayerStats]]:
        """Yield every layer with its statistics; layers that an earlier run measured are not run again."""
        store = self._store
        store.begin()
        if (whole := store.whole()) is not None:
            yield from whole.items()
            return
        parts = [self._ray.put(part) for part in part_orders(self._of, store)]
        share = _share(self._made, self._of, nodes(self._ray), len(parts), threads)
        first = first_layer(store)
        for layer in range(first):
            stats = store.load(layer)
            assert stats is not None
            yield layer, stats
        tokens, (rows, length) = sum(self._of.about["domains"].values()), self._of.about["rows"]
        self._say(f"{tokens:,} tokens in {rows} rows of {length}, in {len(parts)} parts")
        for layer in range(first, store.layers):
            yield layer, self._through(share, layer, parts, threads)
        store.finish()

    def _through(self, share: Share, layer: int, parts: list[Any], threads: int | None) -> LayerStats:
        numbers = {f"layer {layer}, rows from {number * SUM_ROWS}": number for number in range(len(parts))}

        def arguments(name: str, attempt: int, cpus: int) -> tuple[Any, ...]:
            return self._order, parts[numbers[name]], layer, attempt, threads or cpus

        def tidy(name: str) -> None:
            """Remove what a lost attempt has left half-written."""
            path = self._store.hidden_file(layer + 1, numbers[name])
            for part in path.parent.glob(f"{path.name}.*{PART}"):
                part.unlink(missing_ok=True)

        found: dict[str, LayerStats] = {}
        for name, answer in Crew(self._ray, share, self._say, tidy).each(measure_part, list(numbers), arguments):
            assert answer.entry is not None
            found[name] = answer.entry[STATS_ENTRY]
            tidy(name)
        stats = together([found[name] for name in numbers], self._of.about["all_tokens_below"])
        # Statistics first: hidden states without them are of no use, and those before this layer are still there.
        self._store.save(layer, stats)
        for older in self._store.folder.glob("hidden-*.safetensors"):
            if not older.name.startswith(f"hidden-{layer + 1:05d}"):
                older.unlink()
        self._say(f"measured layer {layer} of {self._store.layers}")
        return stats


def part_orders(calibration: Calibration, store: Store) -> list[PartOrder]:
    """Return the parts of the rows, in order."""
    rows = len(calibration.rows.tokens)
    return [
        PartOrder(
            number,
            some_rows(calibration.rows, slice(begin, min(begin + SUM_ROWS, rows))),
            begin,
            dict(calibration.about),
            calibration.public,
            store.layers,
        )
        for number, begin in enumerate(range(0, rows, SUM_ROWS))
    ]


def together(parts: list[LayerStats], all_tokens_below: int | None) -> LayerStats:
    """Add what was measured in the parts of a layer.

    A part cannot know whether an expert sees few tokens in all. It shows all its tokens to those that see few in it,
    which are more; what was measured of the others is not wanted.
    """
    stats = merge(parts)
    if stats.experts is not None and all_tokens_below:
        enough = stats.experts.seen >= all_tokens_below
        stats.experts.all_down_amax = np.where(enough, np.float32(0), stats.experts.all_down_amax)
    return stats


def first_layer(store: Store) -> int:
    """Return the layer that all parts can go on with, and all before it were measured."""
    for layer in store.hidden_layers():
        there = [store.hidden_file(layer, part).is_file() for part in range(store.parts)]
        whole = store.hidden_file(layer).is_file() or all(there)
        if whole and all(store.load(before) is not None for before in range(layer)):
            return layer
    return 0


def _share(made: Plan, of: Calibration, there: list[Node], parts: int, threads: int | None) -> Share:
    """Return what a part takes: an even share of all cores; a layer as it is stored, and the states of its rows."""
    most = max([node.cpus for node in there], default=1)
    cpus = min(threads or max(sum(node.cpus for node in there) // max(parts, 1), 1), most)
    experts = [job.read_nbytes for job in made.jobs if job.layer is not None and job.linears]
    memory = max(layer_nbytes(made.model), default=0) + _EXPERT_COPIES * _EXPERT_COPIES * max(experts, default=0) * cpus
    memory += _STATES * of.hidden_nbytes // max(parts, 1)
    return Share(cpus, min(memory, max([node.memory_nbytes for node in there if node.cpus >= cpus], default=memory)))
