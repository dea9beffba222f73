"""Shard task of a Ray worker: open the source, check that it matches the driver's, write one shard, return its entry.

This module does not import Ray.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from halfbyte import __version__
from halfbyte.checkpoint.atomic_write import Journal
from halfbyte.checkpoint.reader import shard_stamps
from halfbyte.engine.backends.ray import remote_source
from halfbyte.engine.backends.ray.run_spec import RunSpec
from halfbyte.engine.backends.support import Resources
from halfbyte.engine.runner import InputsOf, Runner, no_inputs
from halfbyte.errors import HalfbyteError, MachineError
from halfbyte.plan.manifest import Plan
from halfbyte.recipe.decisions import Recipe

if TYPE_CHECKING:
    from halfbyte.calibrate.stats import LayerStats
    from halfbyte.engine.jobs import JobInputs
    from halfbyte.plan.rules import Job

SETTLE_SECONDS = 20.0  # until another client of a shared file system sees a new file
_POLL_SECONDS = 1.0
_CACHE: dict[str, Any] = {}

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Opened:
    """The plan, and the calibrated inputs of its jobs."""

    plan: Plan
    inputs_of: InputsOf


@dataclass(frozen=True, slots=True)
class TaskResult:
    """The result of a task: its journal entry, or an error of the input or the node."""

    node: str
    entry: Mapping[str, Any] | None = None
    error: Exception | None = None


class _MemoryJournal(Journal):
    """A journal in memory; only the driver writes the journal file."""

    def __init__(self) -> None:
        self.entries: list[dict[str, Any]] = []

    def add(self, entry: dict[str, Any]) -> None:
        """Keep an entry."""
        self.entries.append(entry)


def write_shard(spec: RunSpec, shard: str, attempt: int, threads: int) -> TaskResult:
    """Write one shard of a plan. Errors of the input or of this node are returned, not raised."""
    return as_result(lambda: _write(spec, shard, attempt, threads))


def as_result(work: Callable[[], Mapping[str, Any]]) -> TaskResult:
    """Call `work` and return its entry or error. Other exceptions are bugs, which Ray reports with a traceback."""
    node = node_name()
    try:
        return TaskResult(node, entry=work())
    except (HalfbyteError, OSError, MemoryError) as error:
        error.__cause__ = error.__context__ = None  # they may not be picklable
        return TaskResult(node, error=error)


def node_name() -> str:
    """Return the host name of this node."""
    return socket.gethostname()


def _write(spec: RunSpec, shard: str, attempt: int, threads: int) -> Mapping[str, Any]:
    refuse_stale(spec)
    opened = cached(f"{spec.token} shards", lambda: _open(spec))
    others = {other.name: "" for other in opened.plan.shards if other.name != shard}
    journal, resources = _MemoryJournal(), Resources(threads, mark=f".{spec.token}-{attempt}")
    with (
        exit_when_stale(spec),
        remote_source.fetching(opened.plan, others, f"{spec.token}-{attempt}-{shard}") as (plan, prefetcher),
        Runner(
            plan,
            Path(spec.out),
            journal,
            others,
            seen=spec.seen,
            resources=resources,
            progress=None,
            listeners=(prefetcher,),
        ) as runner,
    ):
        prefetcher.begin(others, lambda _: None)
        runner.do(runner.pending(), opened.inputs_of)
    (entry,) = journal.entries
    return entry


def refuse_stale(spec: RunSpec) -> None:
    """Raise if another run owns the output folder, or if this node cannot see the folder."""
    deadline = time.monotonic() + SETTLE_SECONDS
    while not spec.is_current():
        if time.monotonic() > deadline:
            what = f"node {node_name()} does not see this run in the output folder"
            raise MachineError(what, where=spec.out, fix="use a folder on storage that all nodes share")
        time.sleep(0.2)


@contextmanager
def exit_when_stale(spec: RunSpec) -> Generator[None]:
    """Exit this process as soon as the run no longer owns the output folder."""
    done = threading.Event()

    def poll() -> None:
        while not done.wait(_POLL_SECONDS):
            if not spec.is_current():
                os._exit(1)

    watcher = threading.Thread(target=poll, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()


def cached(key: str, make: Callable[[], T]) -> T:
    """Return the cached value of a key, or make it. The cache holds one value."""
    if key not in _CACHE:
        _CACHE.clear()
        _CACHE[key] = make()
    return _CACHE[key]


def open_plan(spec: RunSpec) -> Plan:
    """Rebuild the driver's plan on this node; raise if the source or the plan differs."""
    from halfbyte.engine.pipeline import plan  # noqa: PLC0415 - avoids an import cycle

    if spec.version != __version__:
        what = f"node {node_name()} has halfbyte {__version__}, the driver {spec.version}"
        raise MachineError(what, where="--ray", fix="install the same version on all nodes")
    source = Path(spec.source)
    if spec.remote is None and not source.is_dir():
        what = f"node {node_name()} cannot see the source"
        raise MachineError(what, where=spec.source, fix="use a folder on storage that all nodes share")
    opened = source if spec.remote is None else remote_source.open_source(spec.remote)
    node_plan = plan(opened, Recipe.of(spec.recipe), layers=spec.layers, kept=spec.kept)
    current = shard_stamps(node_plan.checkpoint)
    different = [shard for shard in spec.seen if current.get(shard) != spec.seen[shard]]
    if different or node_plan.fingerprint() != spec.fingerprint:
        what = f"node {node_name()} sees a different source than the driver"
        where = f"{spec.source}/{different[0]}" if different else spec.source
        fix = "use a folder on storage that all nodes share, and do not modify it"
        raise MachineError(what, where=where, fix=fix)
    return _with_chosen(node_plan, spec.chosen) if spec.chosen is not None else node_plan


def _with_chosen(plan: Plan, chosen: Mapping[int, tuple[int, ...]]) -> Plan:
    """Return the plan with the experts that the run selected; tensor positions and sizes do not change."""
    by_layer = {layer: plan.chosen_jobs(layer, kept) for layer, kept in chosen.items()}
    jobs = tuple(by_layer[job.layer][job.name] if job.layer in by_layer else job for job in plan.jobs)
    return replace(plan, jobs=jobs)


def _open(spec: RunSpec) -> Opened:
    plan = open_plan(spec)
    if not spec.calibrated:
        return Opened(plan, no_inputs)
    from halfbyte.calibrate.store import read_stats  # noqa: PLC0415 - only for calibrated recipes
    from halfbyte.checkpoint.output_folder import FOLDER  # noqa: PLC0415
    from halfbyte.engine.pipeline import STATS  # noqa: PLC0415

    _, layers = read_stats(Path(spec.out) / FOLDER / STATS)
    return Opened(plan, by_layer(layers, plan))


def by_layer(layers: Mapping[int, LayerStats], plan: Plan) -> InputsOf:
    """Return a function that computes the inputs of any job from the statistics of all layers."""
    from halfbyte.engine.jobs import inputs_from_stats  # noqa: PLC0415

    layer_inputs = {layer: inputs_from_stats(stats, plan.recipe.quantize) for layer, stats in layers.items()}

    def inputs_of(job: Job) -> JobInputs:
        return no_inputs(job) if job.layer is None else layer_inputs[job.layer](job)

    return inputs_of
