"""Tasks of a Ray run: the specification that each receives, the source that it opens, and the shard that it writes.

The specification is small: paths on shared storage, the recipe, and the file stamps that the driver read. A worker
opens the source itself and must read the same stamps.

The token of a run is in a file of the output folder. Ray stops the tasks of a dead driver, but not on nodes that it
cannot reach. So tasks check the token, and exit once a later run has removed or replaced it.

Each task fetches the shards it needs of a remote source into its own folder. The tasks of a node share small files.
Credentials are not sent: each node uses its own, from the storage tool's default location. The next task on a node
removes the files of a killed task, whose lock is released.

This module does not import Ray.
"""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import threading
import time
from collections.abc import Callable, Collection, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from halfbyte import __version__
from halfbyte.checkpoint.atomic_write import PART, Journal, write_whole
from halfbyte.checkpoint.folder import Checkpoint
from halfbyte.checkpoint.output_folder import FOLDER, refuse_full
from halfbyte.checkpoint.reader import ShardStamps, shard_stamps
from halfbyte.checkpoint.remote.address import Cache
from halfbyte.checkpoint.remote.mirror import open_remote
from halfbyte.checkpoint.remote.shard_cache import TASKS, ShardCache, locked_tasks
from halfbyte.engine.backends.support import Resources
from halfbyte.engine.prefetch import Prefetcher
from halfbyte.engine.runner import InputsOf, Runner, no_inputs
from halfbyte.errors import HalfbyteError, MachineError, UsageError
from halfbyte.plan.manifest import Plan
from halfbyte.recipe.decisions import Recipe
from halfbyte.ui.units import size

if TYPE_CHECKING:
    from halfbyte.calibrate.stats import LayerStats
    from halfbyte.engine.jobs import JobInputs
    from halfbyte.plan.rules import Job

TOKEN = f"ray{PART}"  # in the output folder; every run, also a local one, first removes files with this suffix
SETTLE_SECONDS = 20.0  # until another client of a shared file system sees a new file
_POLL_SECONDS = 1.0
_CACHE: dict[str, Any] = {}

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class RemoteSource:
    """The address and version of a remote source, and the cache of a task."""

    address: str
    pin: str
    verify: bool
    cache: str  # cache folder on each node
    limit_nbytes: int  # per task


def remote_source(cache: ShardCache, tasks: int) -> RemoteSource:
    """Return the source for workers; `tasks` concurrent tasks share the cache limit of a node."""
    folder = str(cache.folder.absolute().parents[1])  # contains ADDRESS/VERSION
    limit = cache.limit_nbytes // tasks
    return RemoteSource(cache.files.where, cache.files.pin, bool(cache.checksums), folder, limit)


def _open_source(source: RemoteSource) -> Checkpoint:
    """Open the source at the driver's version."""
    cache = Cache(Path(source.cache), source.limit_nbytes)
    checkpoint = open_remote(source.address, cache, source.pin, verify=source.verify)
    assert checkpoint.remote is not None
    if checkpoint.remote.files.pin != source.pin:
        what = "the source changed since the run started"
        raise UsageError(what, where=source.address, fix="do not modify the source; start in a new folder")
    return checkpoint


@contextmanager
def fetching(plan: Plan, others: Collection[str], task: str) -> Generator[tuple[Plan, Prefetcher]]:
    """Yield the plan of one shard with a shard cache of this task only, which is removed afterwards."""
    cache = plan.checkpoint.remote
    if cache is None:
        yield plan, Prefetcher.of_run(plan, others, by_layer=False, measures=False)
        return
    folder = cache.folder / TASKS / task
    task_cache = ShardCache(cache.files, folder, cache.checksums, cache.limit_nbytes)
    task_plan = replace(plan, checkpoint=replace(plan.checkpoint, remote=task_cache))
    prefetcher = Prefetcher.of_run(task_plan, others, by_layer=False, measures=False)
    with locked_tasks(cache.folder):
        prefetcher.__enter__()
    try:
        refuse_full(cache.folder, prefetcher.largest_nbytes, what_for="the cache (--cache, --cache-dir) of a task")
        yield task_plan, prefetcher
    except BaseException as error:
        prefetcher.__exit__(type(error), error, error.__traceback__)
        raise
    else:
        prefetcher.__exit__(None, None, None)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def refuse_small_share(plan: Plan, finished: Collection[str], source: RemoteSource, tasks: int) -> None:
    """Raise, before the first task starts, if the cache of a node is too small for its concurrent tasks."""
    needed = Prefetcher.of_run(plan, finished, by_layer=False, measures=False).largest_nbytes
    if needed > source.limit_nbytes:
        what = f"{tasks} tasks run concurrently on a node, and each may need {size(needed)} of the source at once"
        fix = f"use --cache {-(-needed * tasks // 10**6)}MB or more, or fewer and larger tasks (--threads)"
        raise UsageError(what, where="--cache", fix=fix)


@dataclass(frozen=True, slots=True)
class RunSpec:
    """The specification of one run."""

    source: str
    remote: RemoteSource | None  # None: the source is a folder on shared storage
    out: str
    token: str
    version: str  # of halfbyte
    recipe: Mapping[str, Any]
    layers: int | None
    kept: Mapping[int, tuple[int, ...]] | None  # kept experts, if known before the run
    chosen: Mapping[int, tuple[int, ...]] | None  # kept experts, if selected during the run
    fingerprint: str
    seen: ShardStamps
    calibrated: bool  # whether scales come from the statistics in the output folder

    @property
    def token_file(self) -> Path:
        """Return the path of the token."""
        return Path(self.out) / TOKEN

    def is_current(self) -> bool:
        """Return whether this run still owns the output folder."""
        try:
            return self.token_file.read_text(encoding="utf-8") == self.token
        except FileNotFoundError:
            return False
        except OSError:
            return True  # a transient storage error


@contextmanager
def claimed(out: Path) -> Generator[str]:
    """Claim an output folder with a new token, and remove the token on exit."""
    token = secrets.token_hex(8)
    file = out / TOKEN
    # Its temporary name has the same suffix as partial shards, so that the next run removes it after a kill.
    write_whole(file, token.encode())
    try:
        yield token
    finally:
        file.unlink(missing_ok=True)


@dataclass(frozen=True, slots=True)
class _Opened:
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
        fetching(opened.plan, others, f"{spec.token}-{attempt}-{shard}") as (plan, prefetcher),
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


def cached(key: str, make: Callable[[], _T]) -> _T:
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
    opened = source if spec.remote is None else _open_source(spec.remote)
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


def _open(spec: RunSpec) -> _Opened:
    plan = open_plan(spec)
    if not spec.calibrated:
        return _Opened(plan, no_inputs)
    from halfbyte.calibrate.store import read_stats  # noqa: PLC0415 - only for calibrated recipes

    _, layers = read_stats(stats_folder(spec))
    return _Opened(plan, _inputs_of_layers(layers, plan))


def stats_folder(spec: RunSpec) -> Path:
    """Return the folder of the statistics during calibration."""
    from halfbyte.engine.pipeline import STATS  # noqa: PLC0415 - avoids an import cycle

    return Path(spec.out) / FOLDER / STATS


def _inputs_of_layers(layers: Mapping[int, LayerStats], plan: Plan) -> InputsOf:
    """Return a function that computes the inputs of any job from the statistics of all layers."""
    from halfbyte.engine.jobs import inputs_from_stats  # noqa: PLC0415

    layer_inputs = {layer: inputs_from_stats(stats, plan.recipe.quantize) for layer, stats in layers.items()}

    def inputs_of(job: Job) -> JobInputs:
        return no_inputs(job) if job.layer is None else layer_inputs[job.layer](job)

    return inputs_of
