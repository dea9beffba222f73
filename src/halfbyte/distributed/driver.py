"""The driver of a run on many machines: it hands out shards, sees that they are there, and writes the journal."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from halfbyte import __version__
from halfbyte.distributed.cluster import Node, connected, nodes
from halfbyte.distributed.crew import Crew, Share
from halfbyte.distributed.elsewhere import Elsewhere, elsewhere_of, refuse_small_share
from halfbyte.distributed.order import Order, owning
from halfbyte.distributed.worker import SETTLE_SECONDS, Answer, make_shard
from halfbyte.errors import MachineError
from halfbyte.plan.manifest import Plan
from halfbyte.plan.rules import KEEP
from halfbyte.run import Means, Runner
from halfbyte.source.read import Stamps
from halfbyte.source.remote.tasks import sweep
from halfbyte.write import PART, WAITING_NBYTES

if TYPE_CHECKING:
    from halfbyte.calibrate.given import Statistics
    from halfbyte.calibrate.stats import LayerStats
    from halfbyte.passes import Work
    from halfbyte.prune.decide import LayerByLayer

_FEWEST_CPUS = 4  # of a task, where machines have them: tasks of one core each would each hold a shard open
_COPIES = 3  # of the largest job that a thread holds: stored, decoded, encoded


def run_on_ray(work: Work) -> Mapping[int, LayerStats]:
    """Make every shard that is pending; return the statistics that scales rest on, if any do."""
    made, out, runner, means = work.made, work.out, work.runner, work.means
    assert means.ray is not None
    with connected(means.ray) as ray, owning(out) as token:
        order = _order(made, out, token, runner.reader.seen)
        layers: dict[int, LayerStats] = {}
        if work.measured is not None:
            layers = _measured(ray, order, made, runner, work.measured, means)
            order = replace(order, given=made.recipe.quantize is not None, chosen=_chosen(work.chooser, layers))
        _make_shards(ray, order, made, out, runner, means)
    return layers


def _measured(
    ray: Any, order: Order, made: Plan, runner: Runner, measured: Statistics, means: Means
) -> dict[int, LayerStats]:
    """Return the statistics that are given, or measure them on the cluster."""
    if measured.file is not None:
        return dict(measured.layers(runner.reader, means.threads, runner.say, ()))
    from halfbyte.distributed.measure import Measuring  # noqa: PLC0415 - most recipes take no forward

    return dict(Measuring(ray, ray.put(order), made, measured, runner.say).layers(means.threads))


def _chosen(chooser: LayerByLayer | None, layers: Mapping[int, LayerStats]) -> Mapping[int, tuple[int, ...]] | None:
    """Return which experts stay, where that had to be measured first."""
    if chooser is None:
        return None
    for layer, stats in sorted(layers.items()):
        chooser.jobs(layer, stats, ())
    return {layer: choice.kept for layer, choice in chooser.choices.items()}


def _make_shards(ray: Any, order: Order, made: Plan, out: Path, runner: Runner, means: Means) -> None:
    shards = {shard.name: shard for shard in runner.pending_shards()}
    share = _share(made, nodes(ray), len(shards), means.threads)
    crew = Crew(ray, share, runner.say, lambda shard: _tidy(out, shard))
    kept = ray.put(replace(order, elsewhere=_elsewhere(made, shards, nodes(ray), share)))

    def arguments(shard: str, attempt: int, cpus: int) -> tuple[Any, ...]:
        return kept, shard, attempt, means.threads or _threads(cpus)

    try:
        with contextlib.closing(crew.each(make_shard, list(shards), arguments)) as answers:
            for shard, answer in answers:
                _check_there(out / shard, shards[shard].nbytes, answer)
                assert answer.entry is not None
                runner.take(answer.entry, answer.node)
                _tidy(out, shard)
    finally:  # of tasks that were ended too; those of other machines are removed there, by the next one
        if made.checkpoint.remote is not None:
            sweep(made.checkpoint.remote.folder)


def _elsewhere(made: Plan, pending: Collection[str], there: list[Node], share: Share) -> Elsewhere | None:
    """Return where tasks fetch the source from; those of one machine share what it may hold."""
    if made.checkpoint.remote is None:
        return None
    tasks = min(max([node.cpus // share.cpus for node in there], default=1) or 1, max(len(pending), 1))
    found = elsewhere_of(made.checkpoint.remote, tasks)
    finished = {shard.name for shard in made.shards} - set(pending)
    refuse_small_share(made, finished, found, tasks)
    return found


def _order(made: Plan, out: Path, token: str, seen: Stamps) -> Order:
    return Order(
        source=str(made.checkpoint.root.absolute()),
        elsewhere=None,
        out=str(out.absolute()),
        token=token,
        version=__version__,
        recipe=made.recipe.as_dict(),
        layers=made.layers,
        kept=made.kept if made.chosen else None,
        chosen=None,
        fingerprint=made.fingerprint(),
        seen=seen,
        given=False,
    )


def task_cpus(cores: list[int], tasks: int, threads: int | None = None) -> int:
    """Return the cores of a task: an even share of all, so that the last shards do not run on a few of them."""
    return min(threads or max(sum(cores) // max(tasks, 1), _FEWEST_CPUS), max(cores, default=1))


def _share(made: Plan, there: list[Node], tasks: int, threads: int | None) -> Share:
    """Return what a task takes of a node."""
    cpus = task_cpus([node.cpus for node in there], tasks, threads)
    largest = max([job.read_nbytes + job.write_nbytes for job in made.jobs if job.action != KEEP], default=0)
    memory = WAITING_NBYTES + _COPIES * largest * (threads or _threads(cpus))
    return Share(cpus, min(memory, max([node.memory_nbytes for node in there if node.cpus >= cpus], default=memory)))


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
