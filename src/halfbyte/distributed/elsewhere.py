"""A source that is elsewhere, on many machines: each task fetches what its shard is made of, into a folder of its own.

Small files are shared by all tasks of a machine. Keys do not travel: each machine has its own, where the store's tools
look for them. What a killed task has left is removed by whoever fetches next on that machine: its lock died with it.
"""

from __future__ import annotations

import shutil
from collections.abc import Collection, Generator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from halfbyte.ahead import Ahead
from halfbyte.errors import UsageError
from halfbyte.folders import refuse_full
from halfbyte.plan.manifest import Plan
from halfbyte.source.checkpoint import Checkpoint
from halfbyte.source.remote.cache import Cache
from halfbyte.source.remote.mirror import open_remote
from halfbyte.source.remote.shelf import Shelf
from halfbyte.source.remote.tasks import TASKS, swept
from halfbyte.terminal.units import size


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """Where the source is, and how much of it a task may hold."""

    address: str
    pin: str
    verify: bool
    cache: str  # below it each machine keeps what it fetches
    limit_nbytes: int  # of a task


def elsewhere_of(shelf: Shelf, tasks: int) -> Elsewhere:
    """Return what workers are told; so many tasks at a time share what a machine may hold."""
    cache = shelf.folder.absolute().parents[1]  # below it: the address, and the version
    return Elsewhere(shelf.files.where, shelf.files.pin, bool(shelf.checksums), str(cache), shelf.limit_nbytes // tasks)


def opened(source: Elsewhere) -> Checkpoint:
    """Open it as the driver did."""
    cache = Cache(Path(source.cache), source.limit_nbytes)
    checkpoint = open_remote(source.address, cache, source.pin, verify=source.verify)
    assert checkpoint.remote is not None
    if checkpoint.remote.files.pin != source.pin:
        what = "the source was written to since the run began"
        raise UsageError(what, where=source.address, fix="leave it alone, and begin in a new folder")
    return checkpoint


@contextmanager
def fetching(made: Plan, others: Collection[str], task: str) -> Generator[tuple[Plan, Ahead]]:
    """Give the plan of one shard with a shelf that only this task has; nothing is left of it when the shard is made."""
    shelf = made.checkpoint.remote
    if shelf is None:
        yield made, Ahead.of_run(made, others, by_layer=False, measures=False)
        return
    folder = shelf.folder / TASKS / task
    own = Shelf(shelf.files, folder, shelf.checksums, shelf.limit_nbytes)
    mine = replace(made, checkpoint=replace(made.checkpoint, remote=own))
    ahead = Ahead.of_run(mine, others, by_layer=False, measures=False)
    with swept(shelf.folder):
        ahead.__enter__()
    try:
        refuse_full(shelf.folder, ahead.largest_nbytes, what_for="the cache (--cache, --cache-dir) of a task")
        yield mine, ahead
    except BaseException as error:
        ahead.__exit__(type(error), error, error.__traceback__)
        raise
    else:
        ahead.__exit__(None, None, None)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def refuse_small_share(made: Plan, finished: Collection[str], source: Elsewhere, tasks: int) -> None:
    """Say before the first task begins that a machine cannot hold what its tasks need at once."""
    needed = Ahead.of_run(made, finished, by_layer=False, measures=False).largest_nbytes
    if needed > source.limit_nbytes:
        what = f"{tasks} tasks run on a machine at a time, and each may need {size(needed)} of the source at once"
        fix = f"give --cache {-(-needed * tasks // 10**6)}MB or more, or fewer and larger tasks (--threads)"
        raise UsageError(what, where="--cache", fix=fix)
