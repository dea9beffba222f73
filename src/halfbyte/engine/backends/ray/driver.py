"""The driver of a Ray run: assign shards to tasks, check the written files, and write the journal."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from halfbyte import __version__
from halfbyte.checkpoint.atomic_write import PART, WAITING_NBYTES
from halfbyte.checkpoint.reader import ShardStamps
from halfbyte.checkpoint.remote.shard_cache import sweep
from halfbyte.engine.backends.ray.cluster import Node, TaskPool, TaskResources, check_address, connected, nodes
from halfbyte.engine.backends.ray.worker import (
    SETTLE_SECONDS,
    RemoteSource,
    RunSpec,
    TaskResult,
    claimed,
    refuse_small_share,
    remote_source,
    write_shard,
)
from halfbyte.engine.backends.support import Resources
from halfbyte.engine.runner import Runner
from halfbyte.errors import MachineError
from halfbyte.plan.manifest import Plan
from halfbyte.plan.rules import KEEP

if TYPE_CHECKING:
    from halfbyte.calibrate.stats import LayerStats
    from halfbyte.calibrate.store import Statistics
    from halfbyte.engine.dispatch import Work
    from halfbyte.prune.plan_source import LayerByLayer

_FEWEST_CPUS = 4  # per task, if nodes have them: every task holds a shard open
_COPIES = 3  # of a thread's largest job: stored, decoded, encoded


def check_resources(resources: Resources) -> None:
    """Raise if the cluster cannot be reached."""
    assert resources.ray is not None
    check_address(resources.ray)


def check_plan(_plan: Plan, _measured: Statistics | None, _resources: Resources) -> None:
    """Accept: the nodes' resources are known once the driver is connected."""


def run(work: Work) -> Mapping[int, LayerStats]:
    """Write all pending shards; return the statistics of the run, if it has any."""
    plan, out, runner, resources = work.plan, work.out, work.runner, work.resources
    assert resources.ray is not None
    with connected(resources.ray) as ray, claimed(out) as token:
        spec = _spec(plan, out, token, runner.reader.seen)
        layers: dict[int, LayerStats] = {}
        if work.measured is not None:
            layers = _measured(ray, spec, plan, runner, work.measured, resources)
            calibrated = plan.recipe.quantize is not None
            spec = replace(spec, calibrated=calibrated, chosen=_chosen(work.chooser, layers))
        _write_shards(ray, spec, plan, out, runner, resources)
    return layers


def _measured(
    ray: Any, spec: RunSpec, plan: Plan, runner: Runner, measured: Statistics, resources: Resources
) -> dict[int, LayerStats]:
    """Return the statistics of a file, or calibrate on the cluster."""
    if measured.file is not None:
        return dict(measured.layers(runner.reader, resources.threads, runner.say, ()))
    from halfbyte.engine.backends.ray.calibration import ClusterCalibration  # noqa: PLC0415 - imports torch

    return dict(ClusterCalibration(ray, ray.put(spec), plan, measured, runner.say).layers(resources.threads))


def _chosen(chooser: LayerByLayer | None, layers: Mapping[int, LayerStats]) -> Mapping[int, tuple[int, ...]] | None:
    """Return the kept experts, if their selection depends on this run's statistics."""
    if chooser is None:
        return None
    for layer, stats in sorted(layers.items()):
        chooser.jobs(layer, stats, ())
    return {layer: choice.kept for layer, choice in chooser.choices.items()}


def _write_shards(ray: Any, spec: RunSpec, plan: Plan, out: Path, runner: Runner, resources: Resources) -> None:
    shards = {shard.name: shard for shard in runner.pending_shards()}
    task = _task_resources(plan, nodes(ray), len(shards), resources.threads)
    pool = TaskPool(ray, task, runner.say, lambda shard: _remove_parts(out, shard))
    spec_ref = ray.put(replace(spec, remote=_remote_source(plan, shards, nodes(ray), task)))

    def arguments(shard: str, attempt: int, cpus: int) -> tuple[Any, ...]:
        return spec_ref, shard, attempt, resources.threads or _threads(cpus)

    try:
        with contextlib.closing(pool.each(write_shard, list(shards), arguments)) as results:
            for shard, result in results:
                _check_visible(out / shard, shards[shard].nbytes, result)
                assert result.entry is not None
                runner.take(result.entry, result.node)
                _remove_parts(out, shard)
    finally:  # also after cancelled tasks; on other nodes the next task does this
        if plan.checkpoint.remote is not None:
            sweep(plan.checkpoint.remote.folder)


def _remote_source(plan: Plan, pending: Collection[str], alive: list[Node], task: TaskResources) -> RemoteSource | None:
    """Return the remote source of the tasks; the tasks of one node share its cache limit."""
    if plan.checkpoint.remote is None:
        return None
    tasks = min(max([node.cpus // task.cpus for node in alive], default=1) or 1, max(len(pending), 1))
    source = remote_source(plan.checkpoint.remote, tasks)
    finished = {shard.name for shard in plan.shards} - set(pending)
    refuse_small_share(plan, finished, source, tasks)
    return source


def _spec(plan: Plan, out: Path, token: str, seen: ShardStamps) -> RunSpec:
    return RunSpec(
        source=str(plan.checkpoint.root.absolute()),
        remote=None,
        out=str(out.absolute()),
        token=token,
        version=__version__,
        recipe=plan.recipe.as_dict(),
        layers=plan.layers,
        kept=plan.kept if plan.chosen else None,
        chosen=None,
        fingerprint=plan.fingerprint(),
        seen=seen,
        calibrated=False,
    )


def task_cpus(cores: list[int], tasks: int, threads: int | None = None) -> int:
    """Return the cores per task: an even share of all cores, so that the last shards do not run on only a few."""
    return min(threads or max(sum(cores) // max(tasks, 1), _FEWEST_CPUS), max(cores, default=1))


def _task_resources(plan: Plan, alive: list[Node], tasks: int, threads: int | None) -> TaskResources:
    """Return the CPUs and memory of a task."""
    cpus = task_cpus([node.cpus for node in alive], tasks, threads)
    largest = max([job.read_nbytes + job.write_nbytes for job in plan.jobs if job.action != KEEP], default=0)
    memory = WAITING_NBYTES + _COPIES * largest * (threads or _threads(cpus))
    return TaskResources(
        cpus, min(memory, max([node.memory_nbytes for node in alive if node.cpus >= cpus], default=memory))
    )


def _threads(cpus: int) -> int:
    """Return the threads of a task: two more than cores, as in a local run, because some wait for the disk."""
    return cpus + 2


def _check_visible(path: Path, nbytes: int, result: TaskResult) -> None:
    """Raise if a shard that a node wrote does not become visible here; shared file systems may need some seconds."""
    deadline = time.monotonic() + SETTLE_SECONDS
    while True:
        if path in path.parent.iterdir() and path.stat().st_size == nbytes:  # listing refreshes the NFS cache
            return
        if time.monotonic() > deadline:
            what = f"node {result.node} wrote {path.name}, but this machine does not see it"
            raise MachineError(what, where=str(path.parent), fix="use a folder on storage that all nodes share")
        time.sleep(0.2)


def _remove_parts(out: Path, shard: str) -> None:
    """Remove the partial files of all attempts at a shard."""
    for part in out.glob(f"{shard}.*{PART}"):
        part.unlink(missing_ok=True)
