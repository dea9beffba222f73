"""The driver of a run on many machines: it hands out shards, sees that they are there, and writes the journal."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from halfbyte import __version__
from halfbyte.distributed.cluster import Node, connected, nodes
from halfbyte.distributed.crew import Crew, Share
from halfbyte.distributed.order import Order, owning
from halfbyte.distributed.worker import SETTLE_SECONDS, Answer, make_shard
from halfbyte.errors import MachineError
from halfbyte.plan.manifest import Plan
from halfbyte.plan.rules import KEEP
from halfbyte.run import Means, Runner
from halfbyte.source.read import Stamps
from halfbyte.write import PART, WAITING_NBYTES

if TYPE_CHECKING:
    from halfbyte.calibrate.given import Statistics
    from halfbyte.calibrate.stats import LayerStats
    from halfbyte.prune.decide import LayerByLayer

_FEWEST_CPUS = 4  # of a task, where machines have them: tasks of one core each would each hold a shard open
_COPIES = 3  # of the largest job that a thread holds: stored, decoded, encoded


def run_on_ray(
    made: Plan,
    out: Path,
    runner: Runner,
    measured: Statistics | None,
    chooser: LayerByLayer | None,
    means: Means,
) -> Mapping[int, LayerStats]:
    """Make every shard that is pending; return the statistics that scales rest on, if any do."""
    assert means.ray is not None
    shards = {shard.name: shard for shard in runner.pending_shards()}
    with connected(means.ray) as ray, owning(out) as token:
        layers = dict(measured.layers(runner.reader, means.threads, runner.say, ())) if measured is not None else {}
        order = ray.put(_order(made, out, token, runner.reader.seen, given=_needs_statistics(made, measured)))
        share = _share(made, nodes(ray), len(shards), means.threads)
        crew = Crew(ray, share, runner.say, lambda shard: _tidy(out, shard))

        def arguments(shard: str, attempt: int, cpus: int) -> tuple[Any, ...]:
            return order, shard, attempt, means.threads or _threads(cpus)

        for shard, answer in crew.each(make_shard, list(shards), arguments):
            _check_there(out / shard, shards[shard].nbytes, answer)
            assert answer.entry is not None
            runner.take(answer.entry, answer.node)
            _tidy(out, shard)
    return layers


def _order(made: Plan, out: Path, token: str, seen: Stamps, *, given: bool) -> Order:
    return Order(
        source=str(made.checkpoint.root.absolute()),
        out=str(out.absolute()),
        token=token,
        version=__version__,
        recipe=made.recipe.as_dict(),
        layers=made.layers,
        kept=made.kept if made.chosen else None,
        chosen=None,
        fingerprint=made.fingerprint(),
        seen=seen,
        given=given,
    )


def _needs_statistics(made: Plan, measured: Statistics | None) -> bool:
    return measured is not None and made.recipe.quantize is not None


def _share(made: Plan, there: list[Node], tasks: int, threads: int | None) -> Share:
    """Return what a task takes: an even share of all cores, so that the last shards do not run on a few of them."""
    most = max([node.cpus for node in there], default=1)
    even = sum(node.cpus for node in there) // max(tasks, 1)
    cpus = min(threads or max(even, _FEWEST_CPUS), most)
    largest = max([job.read_nbytes + job.write_nbytes for job in made.jobs if job.action != KEEP], default=0)
    memory = WAITING_NBYTES + _COPIES * largest * (threads or _threads(cpus))
    return Share(cpus, min([memory, *(node.memory_nbytes for node in there if node.cpus >= cpus)]))


def _threads(cpus: int) -> int:
    """Return the threads of a task: as in a local run, two more than cores, for those that wait for the disk."""
    return cpus + 2


def _check_there(path: Path, nbytes: int, answer: Answer) -> None:
    """See that a shard is where a node says it has put it. Shared file systems may take their time to show it."""
    end = time.monotonic() + SETTLE_SECONDS
    while True:
        if path in path.parent.iterdir() and path.stat().st_size == nbytes:  # listing makes NFS ask its server again
            return
        if time.monotonic() > end:
            what = f"node {answer.node} has written {path.name}, which this machine does not see"
            raise MachineError(what, where=str(path.parent), fix="give a folder on storage that all nodes share")
        time.sleep(0.2)


def _tidy(out: Path, shard: str) -> None:
    """Remove what attempts at a shard have left half-written."""
    for part in out.glob(f"{shard}.*{PART}"):
        part.unlink(missing_ok=True)
