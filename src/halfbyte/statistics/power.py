"""The chance that an equally good build passes an eval gate, by simulation with the code that decides the gate.

An equally good build still answers some items differently: rounding flips answers both ways. A flip rate of 2 % means
that one item in a hundred becomes right and one becomes wrong. Passes with several seeds count as one, because an item
that flips usually flips in every pass; the real chance is then higher.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from halfbyte.statistics.pairs import judge_differences
from halfbyte.statistics.sampling import Clusters, clusters_of
from halfbyte.statistics.verdicts import judge_suite

FLIP_RATE = 0.02
ENOUGH = 0.9  # the smallest chance that a shipped recipe may have
HOPELESS = 0.1  # a release with a smaller chance is refused
DRAWS = 1000


@dataclass(frozen=True, slots=True)
class TaskSize:
    """The items of a task, in clusters of equal size where items of one cluster are not independent."""

    task: str
    items: int
    clusters: int | None = None


def chance_to_pass(
    tasks: Sequence[TaskSize], margin: float, flip_rate: float = FLIP_RATE, *, accept: bool, seed: int = 0
) -> float:
    """Return the share of simulated equally good builds that pass.

    With `accept`, all tasks must be ACCEPT; otherwise none may be a REGRESSION after Holm's correction.
    """
    random = np.random.default_rng(seed)
    grouped = {task.task: _clusters(task) for task in tasks}
    labels = [
        judge_suite(
            {
                task.task: judge_differences(
                    _flips(task.items, flip_rate, random), is_binary=True, clusters=grouped[task.task], margin=margin
                )
                for task in tasks
            }
        ).label
        for _ in range(DRAWS)
    ]
    passed = [label == "ACCEPT" if accept else label != "REGRESSION" for label in labels]
    return sum(passed) / DRAWS


def _flips(items: int, rate: float, random: np.random.Generator) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Return +1 for items that became right, -1 for items that became wrong, and 0 for all others."""
    drawn = random.random(items)
    return (drawn < rate / 2).astype(np.float64) - (drawn > 1 - rate / 2)


def _clusters(task: TaskSize) -> Clusters | None:
    return None if task.clusters is None else clusters_of(np.arange(task.items) % task.clusters, task.items)
