"""How long a plan takes on 1, 4 and 16 nodes, by a model of disks and networks; nothing is read and nothing is made.

    python benchmarks/sim_ray.py                                   built-in Kimi-K2.6, the table of docs/ray.md
    python benchmarks/sim_ray.py --storage 20 --network 3 --cores 64

The plan is the real one: its shards with their reads and writes. Shards are handed out as `quantize --ray` does: each
to the next node with room, in the plan's order, with the cores that the driver would give it. Everything else is a
model. A task reads, computes and writes at once, at the rate of the slowest of the three. It has its cores, an even
part of its node's network with the tasks beside it, and an even part of the storage with all tasks. A task's unused
part goes to the others (max-min fairness, in bytes). A start costs seconds. The back-of-envelope beside it is the
largest of three quotients, with nothing about shards; where they differ, shards are few or unequal.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass

from halfbyte.engine.backends.ray.driver import task_cpus
from halfbyte.engine.pipeline import plan
from halfbyte.inspect.inspection import open_source
from halfbyte.recipe.load import load_recipe

GB = 1e9


@dataclass
class Machine:
    """What limits a run, in bytes and seconds."""

    nodes: int
    cores: int
    core_rate: float  # source bytes that a core converts in a second
    network: float  # of a node, each way
    storage: float  # of all, reads and writes together
    start: float = 5.0  # seconds until a task's first byte: imports, headers, the plan


@dataclass
class Task:
    """A shard that is being made."""

    read: float
    write: float
    node: int
    cpus: int
    waiting: float
    left: float = 0.0  # bytes left to read

    def __post_init__(self) -> None:
        self.left = self.read


def shares(plan_made) -> list[tuple[float, float]]:
    """Return the reads and writes of each shard."""
    place = {tensor.name: shard.name for shard in plan_made.shards for tensor in shard.tensors}
    read = dict.fromkeys((shard.name for shard in plan_made.shards), 0.0)
    for job in plan_made.jobs:
        for shard in {place[output.name] for output in job.outputs}:
            read[shard] += job.read_nbytes  # a job in two shards is done twice
    return [(read[shard.name], float(shard.nbytes)) for shard in plan_made.shards]


def envelope(work: Sequence[tuple[float, float]], machine: Machine) -> float:
    """Return the seconds that bandwidths alone allow."""
    read, write = sum(one for one, _ in work), sum(other for _, other in work)
    return machine.start + max(
        (read + write) / machine.storage,
        max(read, write) / (machine.network * machine.nodes),
        read / (machine.core_rate * machine.cores * machine.nodes),
    )


def rates(tasks: Sequence[Task], machine: Machine) -> list[float]:
    """Return the bytes that each task reads in a second: max-min fair under every limit."""
    found = [0.0] * len(tasks)
    open_tasks = set(range(len(tasks)))
    # Each limit: its tasks, its use per byte read, and its capacity.
    limits = [(set(range(len(tasks))), lambda t: 1 + t.write / t.read, machine.storage)]
    for node in {task.node for task in tasks}:
        here = {at for at, task in enumerate(tasks) if task.node == node}
        limits += [(here, lambda t: 1.0, machine.network), (here, lambda t: t.write / t.read, machine.network)]
    for at, task in enumerate(tasks):
        limits.append(({at}, lambda t: 1.0, machine.core_rate * task.cpus))
    while open_tasks:
        # The tightest limit fixes its tasks: each gets the same bytes a second of the remainder.
        best, whom = None, set()
        for members, need, most in limits:
            unfixed = members & open_tasks
            if not unfixed:
                continue
            used = sum(found[at] * need(tasks[at]) for at in members - open_tasks)
            each = max(most - used, 0.0) / sum(need(tasks[at]) for at in unfixed)
            if best is None or each < best:
                best, whom = each, unfixed
        for at in whom:
            found[at] = best or 0.0
        open_tasks -= whom
    return found


def simulate(work: Sequence[tuple[float, float]], machine: Machine) -> float:
    """Return the seconds of a run."""
    cpus = task_cpus([machine.cores] * machine.nodes, len(work))
    queue, free = list(work), [machine.cores] * machine.nodes
    running: list[Task] = []
    started: set[tuple[int, int]] = set()
    clock = 0.0
    while queue or running:
        while queue and max(free) >= cpus:
            node = free.index(max(free))
            slot = (node, free[node] // cpus)
            read, write = queue.pop(0)
            running.append(Task(read, write, node, cpus, 0.0 if slot in started else machine.start))
            started.add(slot)
            free[node] -= cpus
        active = [task for task in running if task.waiting <= 0]
        pace = dict(zip(map(id, active), rates(active, machine), strict=True))
        step = min(
            [task.left / pace[id(task)] for task in active] + [task.waiting for task in running if task.waiting > 0]
        )
        clock += step
        for task in running:
            if id(task) in pace:
                task.left -= pace[id(task)] * step
            else:
                task.waiting -= step
        for task in [task for task in running if task.left <= 1]:
            running.remove(task)
            free[task.node] += task.cpus
    return clock


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", default="kimi-k2.6-mxfp4-wafer")
    parser.add_argument("--cores", type=int, default=32, help="of a node")
    parser.add_argument(
        "--core-rate", type=float, default=0.4, help="GB of INT4 source that a core converts in a second"
    )
    parser.add_argument("--network", type=float, default=3.0, help="GB/s of a node, each way (25 Gbit/s)")
    parser.add_argument("--storage", type=float, nargs="*", default=[2.0, 20.0], help="GB/s of all, read and write")
    parser.add_argument("--nodes", type=int, nargs="*", default=[1, 4, 16])
    given = parser.parse_args()
    work = shares(plan(open_source(None, "kimi-k2.6"), load_recipe(given.recipe)))
    print(
        f"{len(work)} shards, {sum(r for r, _ in work) / GB:.1f} GB read, {sum(w for _, w in work) / GB:.1f} GB written"
    )
    rows = []
    for storage in given.storage:
        for count in given.nodes:
            machine = Machine(count, given.cores, given.core_rate * GB, given.network * GB, storage * GB)
            cpus = task_cpus([machine.cores] * count, len(work))
            found = round(envelope(work, machine)), round(simulate(work, machine))
            print(f"storage {storage:4.1f} GB/s, {count:2d} nodes, {cpus:2d} cores a task:", end=" ")
            print(f"envelope {found[0]:4d} s, simulated {found[1]:4d} s")
            rows.append({"storage": storage, "nodes": count, "cpus": cpus, "envelope": found[0], "simulated": found[1]})
    print(json.dumps(rows))


if __name__ == "__main__":
    main()
