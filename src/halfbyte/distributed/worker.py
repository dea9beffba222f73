"""What a worker does: open the source, see that it is the driver's, make one shard, say what the journal will hold.

Nothing here needs Ray, but the name of the node.
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
from halfbyte.distributed import elsewhere
from halfbyte.distributed.order import Order
from halfbyte.errors import HalfbyteError, MachineError
from halfbyte.plan.manifest import Plan
from halfbyte.recipe.decisions import Recipe
from halfbyte.run import FromData, Means, Runner, nothing_given
from halfbyte.source.read import stamps
from halfbyte.write import Journal

if TYPE_CHECKING:
    from halfbyte.calibrate.stats import LayerStats
    from halfbyte.plan.rules import Job
    from halfbyte.transform.apply import Given

SETTLE_SECONDS = 20.0  # what a file may take to be seen by another client of a shared file system
_LOOK_SECONDS = 1.0
_KEPT: dict[str, Any] = {}

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Opened:
    """A run, as this worker sees it."""

    plan: Plan
    given: FromData


@dataclass(frozen=True, slots=True)
class Answer:
    """What a task returns: the journal's line, or an error that is none of Ray's."""

    node: str
    entry: Mapping[str, Any] | None = None
    error: Exception | None = None


class _Lines(Journal):
    """A journal in memory: the driver has the one that is written."""

    def __init__(self) -> None:
        self.entries: list[dict[str, Any]] = []

    def add(self, entry: dict[str, Any]) -> None:
        """Take a line."""
        self.entries.append(entry)


def make_shard(order: Order, shard: str, attempt: int, threads: int) -> Answer:
    """Make one shard of a plan; what is wrong with the input or with this machine is the answer, not a crash."""
    return answered(lambda: _make(order, shard, attempt, threads))


def answered(work: Callable[[], Mapping[str, Any]]) -> Answer:
    """Do something; return what came of it, with the name of this node. A bug is Ray's to tell, with its traceback."""
    node = node_name()
    try:
        return Answer(node, entry=work())
    except (HalfbyteError, OSError, MemoryError) as error:
        error.__cause__ = error.__context__ = None  # which may not travel
        return Answer(node, error=error)


def node_name() -> str:
    """Return what tells this machine from others."""
    return socket.gethostname()


def _make(order: Order, shard: str, attempt: int, threads: int) -> Mapping[str, Any]:
    refuse_ended(order)
    opened = kept(f"{order.token} shards", lambda: _open(order))
    others = {other.name: "" for other in opened.plan.shards if other.name != shard}
    lines, means = _Lines(), Means(threads, mark=f".{order.token}-{attempt}")
    with (
        watched(order),
        elsewhere.fetching(opened.plan, others, f"{order.token}-{attempt}-{shard}") as (plan, ahead),
        Runner(
            plan, Path(order.out), lines, others, seen=order.seen, means=means, progress=None, watches=(ahead,)
        ) as runner,
    ):
        ahead.begin(others, lambda _: None)
        runner.do(runner.pending(), opened.given)
    (entry,) = lines.entries
    return entry


def refuse_ended(order: Order) -> None:
    """Refuse to work for a run that is not the one in the output folder, or where that folder cannot be seen."""
    end = time.monotonic() + SETTLE_SECONDS
    while not order.goes_on():
        if time.monotonic() > end:
            what = f"node {node_name()} does not see this run in the output folder"
            raise MachineError(what, where=order.out, fix="give a folder on storage that all nodes share")
        time.sleep(0.2)


@contextmanager
def watched(order: Order) -> Generator[None]:
    """End this process as soon as the run is over for others: nobody waits for what it makes."""
    done = threading.Event()

    def look() -> None:
        while not done.wait(_LOOK_SECONDS):
            if not order.goes_on():
                os._exit(1)

    watcher = threading.Thread(target=look, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()


def kept(key: str, make: Callable[[], T]) -> T:
    """Return what was made for this key, and keep it until another is asked for: a worker holds one thing at a time."""
    if key not in _KEPT:
        _KEPT.clear()
        _KEPT[key] = make()
    return _KEPT[key]


def open_plan(order: Order) -> Plan:
    """Make the driver's plan from what this machine sees; refuse to work on something else."""
    from halfbyte.pipeline import plan  # noqa: PLC0415 - which imports all of this

    if order.version != __version__:
        what = f"node {node_name()} has halfbyte {__version__}, the driver {order.version}"
        raise MachineError(what, where="--ray", fix="install the same version on all nodes")
    source = Path(order.source)
    if order.elsewhere is None and not source.is_dir():
        what = f"node {node_name()} cannot see the source"
        raise MachineError(what, where=order.source, fix="give a folder on storage that all nodes share")
    given = source if order.elsewhere is None else elsewhere.opened(order.elsewhere)
    made = plan(given, Recipe.of(order.recipe), layers=order.layers, kept=order.kept)
    found = stamps(made.checkpoint)
    different = [shard for shard in order.seen if found.get(shard) != order.seen[shard]]
    if different or made.fingerprint() != order.fingerprint:
        what = f"node {node_name()} sees another source than the driver"
        where = f"{order.source}/{different[0]}" if different else order.source
        fix = "give a folder on storage that all nodes share, and leave it alone"
        raise MachineError(what, where=where, fix=fix)
    return _with_chosen(made, order.chosen) if order.chosen is not None else made


def _with_chosen(made: Plan, chosen: Mapping[int, tuple[int, ...]]) -> Plan:
    """Return the plan with the experts that were chosen on the way; every place and size stays."""
    by_layer = {layer: made.chosen_jobs(layer, kept) for layer, kept in chosen.items()}
    jobs = tuple(by_layer[job.layer][job.name] if job.layer in by_layer else job for job in made.jobs)
    return replace(made, jobs=jobs)


def _open(order: Order) -> Opened:
    made = open_plan(order)
    if not order.given:
        return Opened(made, nothing_given)
    from halfbyte.calibrate.store import read_stats  # noqa: PLC0415 - most recipes have none
    from halfbyte.folders import FOLDER  # noqa: PLC0415
    from halfbyte.pipeline import STATS  # noqa: PLC0415

    _, layers = read_stats(Path(order.out) / FOLDER / STATS)
    return Opened(made, by_layer(layers, made))


def by_layer(layers: Mapping[int, LayerStats], made: Plan) -> FromData:
    """Return what knows the scales of every job, of whichever layer."""
    from halfbyte.transform.from_data import from_data  # noqa: PLC0415

    known = {layer: from_data(stats, made.recipe.quantize) for layer, stats in layers.items()}

    def given(job: Job) -> Given:
        return nothing_given(job) if job.layer is None else known[job.layer](job)

    return given
