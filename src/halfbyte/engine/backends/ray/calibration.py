"""Calibrate on a Ray cluster: tasks run parts of the rows, and the driver adds their statistics in order.

Layers run one after the other. The statistics match a local run bit for bit: a part always has `SUM_ROWS` rows, for any
number of nodes, and parts are added in the same order. Hidden states are on shared storage between layers, so any
worker can run the next layer.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from halfbyte.calibrate.expert_sums import SUM_ROWS
from halfbyte.calibrate.layers import layer_nbytes, tensors_by_layer
from halfbyte.calibrate.stats import LayerStats, merge
from halfbyte.calibrate.store import Statistics, Store, hidden_pieces, load_hidden_file
from halfbyte.calibrate.stream import Calibration, Stream
from halfbyte.calibrate.token_rows import Rows
from halfbyte.checkpoint.atomic_write import PART, write_whole
from halfbyte.checkpoint.reader import CachingReader
from halfbyte.engine.backends.ray.cluster import Node, TaskPool, TaskResources, nodes
from halfbyte.engine.backends.ray.worker import (
    SETTLE_SECONDS,
    RunSpec,
    TaskResult,
    as_result,
    cached,
    exit_when_stale,
    node_name,
    open_plan,
    refuse_stale,
    stats_folder,
)
from halfbyte.errors import MachineError
from halfbyte.families.registry import text_model
from halfbyte.families.weights import Weights
from halfbyte.plan.manifest import Plan

if TYPE_CHECKING:
    from halfbyte.calibrate.stats import LayerStats

_STATS_ENTRY = "stats"
_EXPERT_COPIES = 4  # of an expert's weights per thread: stored, and decoded gate, up and down
_STATES = 6  # copies of a part's hidden states: before, after, expert inputs and outputs, and their sums


@dataclass(frozen=True, slots=True, eq=False)
class _PartSpec:
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


def measure_part(spec: RunSpec, part: _PartSpec, layer: int, attempt: int, threads: int) -> TaskResult:
    """Run a part of the rows through a layer; return its statistics and store the hidden states for the next layer."""
    return as_result(lambda: {_STATS_ENTRY: _measure(spec, part, layer, attempt, threads)})


def _measure(spec: RunSpec, part: _PartSpec, layer: int, attempt: int, threads: int) -> LayerStats:
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


def _hidden(store: Store, part: _PartSpec, layer: int) -> torch.Tensor:
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


class ClusterCalibration:
    """A calibration on a Ray cluster; `spec` is Ray's reference to the RunSpec."""

    def __init__(self, ray: Any, spec: Any, plan: Plan, measured: Statistics, say: Callable[[str], None]) -> None:
        assert measured.calibration is not None
        assert measured.store is not None
        self._ray, self._spec, self._plan, self._say = ray, spec, plan, say
        self._calibration, self._store = measured.calibration, measured.store

    def layers(self, threads: int | None) -> Iterator[tuple[int, LayerStats]]:
        """Yield the statistics of every layer; layers that an earlier run measured are loaded."""
        store = self._store
        store.begin()
        resumed = store.resume(load=False)
        yield from resumed.measured.items()
        if resumed.complete:
            return
        parts = [self._ray.put(part) for part in _part_specs(self._calibration, store)]
        task = _task_resources(self._plan, self._calibration, nodes(self._ray), len(parts), threads)
        tokens, (rows, length) = sum(self._calibration.about["domains"].values()), self._calibration.about["rows"]
        self._say(f"{tokens:,} tokens in {rows} rows of {length}, in {len(parts)} parts")
        for layer in range(resumed.next_layer, store.layers):
            yield layer, self._run_layer(task, layer, parts, threads)
        store.finish()

    def _run_layer(self, task: TaskResources, layer: int, parts: list[Any], threads: int | None) -> LayerStats:
        numbers = {f"layer {layer}, rows from {number * SUM_ROWS}": number for number in range(len(parts))}

        def arguments(name: str, attempt: int, cpus: int) -> tuple[Any, ...]:
            return self._spec, parts[numbers[name]], layer, attempt, threads or cpus

        def remove_parts(name: str) -> None:
            """Remove the partial files of failed attempts."""
            path = self._store.hidden_file(layer + 1, numbers[name])
            for part in path.parent.glob(f"{path.name}.*{PART}"):
                part.unlink(missing_ok=True)

        measured: dict[str, LayerStats] = {}
        pool = TaskPool(self._ray, task, self._say, remove_parts)
        for name, result in pool.each(measure_part, list(numbers), arguments):
            assert result.entry is not None
            measured[name] = result.entry[_STATS_ENTRY]
            remove_parts(name)
        stats = _merge_parts([measured[name] for name in numbers], self._calibration.about["all_tokens_below"])
        # Save the statistics before removing the hidden states before this layer: a resumed run needs both.
        self._store.save(layer, stats)
        for older in self._store.folder.glob("hidden-*.safetensors"):
            if not older.name.startswith(f"hidden-{layer + 1:05d}"):
                older.unlink()
        self._say(f"measured layer {layer + 1} of {self._store.layers}")
        return stats


def _part_specs(calibration: Calibration, store: Store) -> list[_PartSpec]:
    """Return the parts of the rows, in order."""
    rows = len(calibration.rows.tokens)
    return [
        _PartSpec(
            number,
            calibration.rows.select(slice(begin, min(begin + SUM_ROWS, rows))),
            begin,
            dict(calibration.about),
            calibration.public,
            store.layers,
        )
        for number, begin in enumerate(range(0, rows, SUM_ROWS))
    ]


def _merge_parts(parts: list[LayerStats], all_tokens_below: int | None) -> LayerStats:
    """Add the statistics of the parts of a layer.

    A part cannot know the total token count of an expert, so it measures `all_down_amax` for every expert with few
    tokens in that part. The values of experts with enough tokens in total are reset here.
    """
    stats = merge(parts)
    if stats.experts is not None and all_tokens_below:
        enough = stats.experts.seen >= all_tokens_below
        stats.experts.all_down_amax = np.where(enough, np.float32(0), stats.experts.all_down_amax)
    return stats


def _task_resources(
    plan: Plan, calibration: Calibration, alive: list[Node], parts: int, threads: int | None
) -> TaskResources:
    """Return the resources of a part: an even share of the cores, and memory for a stored layer and hidden states."""
    most = max([node.cpus for node in alive], default=1)
    cpus = min(threads or max(sum(node.cpus for node in alive) // max(parts, 1), 1), most)
    experts = [job.read_nbytes for job in plan.jobs if job.layer is not None and job.linears]
    memory = max(layer_nbytes(plan.model), default=0) + _EXPERT_COPIES * _EXPERT_COPIES * max(experts, default=0) * cpus
    memory += _STATES * calibration.hidden_nbytes // max(parts, 1)
    return TaskResources(
        cpus, min(memory, max([node.memory_nbytes for node in alive if node.cpus >= cpus], default=memory))
    )
