"""Calibrate on a Ray cluster: tasks run parts of the rows, and the driver adds their statistics in order.

Layers run one after the other. The statistics match a local run bit for bit, because the parts have the same rows for
any number of nodes and are added in the same order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from halfbyte.calibrate.expert_sums import SUM_ROWS
from halfbyte.calibrate.layers import layer_nbytes
from halfbyte.calibrate.stats import LayerStats, merge
from halfbyte.calibrate.store import Statistics, Store
from halfbyte.calibrate.stream import Calibration
from halfbyte.checkpoint.atomic_write import PART
from halfbyte.engine.backends.cuda.placement import some_rows
from halfbyte.engine.backends.ray.calibration_task import STATS_ENTRY, PartSpec, measure_part
from halfbyte.engine.backends.ray.cluster import Node, nodes
from halfbyte.engine.backends.ray.task_pool import TaskPool, TaskResources
from halfbyte.plan.manifest import Plan

_EXPERT_COPIES = 4  # of an expert's weights per thread: stored, and decoded gate, up and down
_STATES = 6  # copies of a part's hidden states: before, after, expert inputs and outputs, and their sums


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
        parts = [self._ray.put(part) for part in part_specs(self._calibration, store)]
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
            measured[name] = result.entry[STATS_ENTRY]
            remove_parts(name)
        stats = merge_parts([measured[name] for name in numbers], self._calibration.about["all_tokens_below"])
        # Save the statistics before removing the hidden states before this layer: a resumed run needs both.
        self._store.save(layer, stats)
        for older in self._store.folder.glob("hidden-*.safetensors"):
            if not older.name.startswith(f"hidden-{layer + 1:05d}"):
                older.unlink()
        self._say(f"measured layer {layer + 1} of {self._store.layers}")
        return stats


def part_specs(calibration: Calibration, store: Store) -> list[PartSpec]:
    """Return the parts of the rows, in order."""
    rows = len(calibration.rows.tokens)
    return [
        PartSpec(
            number,
            some_rows(calibration.rows, slice(begin, min(begin + SUM_ROWS, rows))),
            begin,
            dict(calibration.about),
            calibration.public,
            store.layers,
        )
        for number, begin in enumerate(range(0, rows, SUM_ROWS))
    ]


def merge_parts(parts: list[LayerStats], all_tokens_below: int | None) -> LayerStats:
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
