"""Remote sources in a Ray run: each task fetches the source shards it needs into its own folder.

The tasks of a node share small files. Credentials are not sent: each node uses its own, from the storage tool's default
location. The next task on a node removes the files of a killed task, whose lock is released.
"""

from __future__ import annotations

import shutil
from collections.abc import Collection, Generator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from halfbyte.checkpoint.folder import Checkpoint
from halfbyte.checkpoint.output_folder import refuse_full
from halfbyte.checkpoint.remote.address import Cache
from halfbyte.checkpoint.remote.mirror import open_remote
from halfbyte.checkpoint.remote.shard_cache import TASKS, ShardCache, swept
from halfbyte.engine.prefetch import Prefetcher
from halfbyte.errors import UsageError
from halfbyte.plan.manifest import Plan
from halfbyte.ui.units import size


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


def open_source(source: RemoteSource) -> Checkpoint:
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
    with swept(cache.folder):
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
