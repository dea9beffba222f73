"""From items to verdicts: each task's accuracies, the comparison that decides, and what is no score at all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from halfbyte.validate.evaluate.anomalies import anomalies, between, truncated
from halfbyte.validate.evaluate.samples import Sample
from halfbyte.validate.evaluate.suites import Suite, Task
from halfbyte.validate.statistics.multiple import judge_suite
from halfbyte.validate.statistics.one_sample import Accuracy, accuracy
from halfbyte.validate.statistics.pairs import Paired, paired
from halfbyte.validate.statistics.seeds import Seeds, over_seeds

Label = Literal["ACCEPT", "REGRESSION", "INCONCLUSIVE", "ANOMALOUS", "SCORED"]
_ItemName = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Scored:
    """One side of one task."""

    samples: int
    errors: int
    truncated: int
    empty: int
    by_metric: dict[str, Accuracy]
    by_seed: dict[int, float]  # of the metric that decides

    def as_dict(self) -> dict[str, Any]:
        """Return it for JSON."""
        return {
            "samples": self.samples,
            "errors": self.errors,
            "truncated": self.truncated,
            "empty": self.empty,
            "by_metric": {name: one.as_dict() for name, one in self.by_metric.items()},
            "by_seed": {str(seed): value for seed, value in self.by_seed.items()},
        }


@dataclass(frozen=True, slots=True)
class Judged:
    """One task: both sides, their difference by metric, and the verdict of the metric that decides."""

    task: Task
    label: Label
    candidate: Scored
    reference: Scored | None
    compared: dict[str, Paired | Seeds]
    worst_case: float | None  # the difference if every missing answer counted against the candidate
    anomalies: list[str]
    notes: list[str]

    @property
    def decides(self) -> Paired | None:
        """The comparison of the metric that was chosen beforehand."""
        found = self.compared.get(self.task.primary)
        return _decides(found) if found else None

    def as_dict(self) -> dict[str, Any]:
        """Return it for JSON."""
        return {
            "task": self.task.task,
            "asked_as": "chat, with the server's template" if self.task.api == "chat" else "completions, no template",
            "shots": self.task.shots,
            "label": self.label,
            "primary": self.task.primary,
            "candidate": self.candidate.as_dict(),
            "reference": self.reference.as_dict() if self.reference else None,
            "compared": {name: one.as_dict() for name, one in self.compared.items()},
            "worst_case_difference": self.worst_case,
            "anomalies": self.anomalies,
            "notes": self.notes,
        }


def judge(suite: Suite, candidate: Sequence[Sample], reference: Sequence[Sample] | None, margin: float) -> list[Judged]:
    """Judge every task of a suite; a REGRESSION must hold after Holm's correction for their number."""
    judged: list[Judged] = []
    for task in suite.tasks:
        ours = [one for one in candidate if one.task == task.task]
        theirs = None if reference is None else [one for one in reference if one.task == task.task]
        judged.append(_judge_task(task, ours, theirs, margin))
    sound = {one.task.task: one.decides.verdict for one in judged if one.label != "ANOMALOUS" and one.decides}
    corrected = judge_suite(sound).verdicts if sound else {}
    return [_with_label(one, corrected.get(one.task.task)) for one in judged]


def _with_label(judged: Judged, corrected: Label | None) -> Judged:
    if corrected is None or judged.label != "REGRESSION" or corrected == judged.label:
        return judged
    notes = [*judged.notes, f"{judged.label} by itself, but not after Holm's correction for the number of tasks"]
    return Judged(judged.task, corrected, judged.candidate, judged.reference, judged.compared, judged.worst_case,
                  judged.anomalies, notes)  # fmt: skip


def _judge_task(task: Task, ours: list[Sample], theirs: list[Sample] | None, margin: float) -> Judged:
    wrong = [f"candidate: {what}" for what in anomalies(ours, task)]
    compared: dict[str, Paired | Seeds] = {}
    worst = None
    if theirs is not None:
        wrong += [f"reference: {what}" for what in anomalies(theirs, task)] + between(ours, theirs, task)
        compared = {name: found for name in _metrics(ours) if (found := _compare(ours, theirs, name, margin))}
        worst = _worst_case(ours, theirs, task.primary)
    label: Label = "SCORED"
    if wrong:
        label = "ANOMALOUS"
    elif task.primary in compared:
        label = _decides(compared[task.primary]).verdict.label
    other = None if theirs is None else _scored(theirs, task)
    notes = [*_notes(ours, task), *_ended_programs(ours, "candidate"), *_ended_programs(theirs or [], "reference")]
    notes += _other_losses(compared, task)
    if label == "ACCEPT" and worst is not None and not _holds(compared[task.primary], worst, margin):
        label = "INCONCLUSIVE"
        notes.append(
            "ACCEPT of the answers that there are, but not if all that are missing counted against the candidate; the "
            "same command asks for them again"
        )
    return Judged(task, label, _scored(ours, task), other, compared, worst, wrong, notes)


def _notes(samples: list[Sample], task: Task) -> list[str]:
    """What a reader of the score must know about the questions."""
    notes: list[str] = []
    targets = {one.target for one in samples}
    if len(targets) == 1 and len(samples) > 1 and (task.kind == "choose" or task.short_answer):
        notes.append("every item asked has the same right answer: whoever always gives it scores 100 %; ask more items")
    prompts: dict[_ItemName, set[str]] = {}
    for one in samples:
        prompts.setdefault((one.subtask, one.doc), set()).add(one.prompt_hash)
    seeds = {one.seed for one in samples}
    if len(seeds) > 1 and all(len(hashes) == 1 for hashes in prompts.values()):
        notes.append(f"all {len(seeds)} seeds asked with the same prompts: what differs is the server's own noise")
    return notes


def _ended_programs(samples: list[Sample], side: str) -> list[str]:
    """Programs that were not wrong but ended: right ones may be among them, so a reader must know of them."""
    ended = Counter(str(run["ended"]) for one in samples for run in one.programs if run["ended"] != "exit")
    told = ", ".join(f"{reason} {count}" for reason, count in sorted(ended.items()))
    return [f"{side}: {ended.total()} programs reached a limit and count as wrong ({told})"] if ended else []


def _decides(found: Paired | Seeds) -> Paired:
    return found.decides if isinstance(found, Seeds) else found


def _holds(found: Paired | Seeds, worst: float, margin: float) -> bool:
    """Whether the bound still lies within the margin when the difference is the worst one."""
    verdict = _decides(found).verdict
    return verdict.lower - (verdict.difference - worst) > -margin


def _other_losses(compared: dict[str, Paired | Seeds], task: Task) -> list[str]:
    """Losses beyond the margin in what does not decide: one score was chosen beforehand, and hides those of others."""
    if task.primary in compared and _decides(compared[task.primary]).verdict.label == "REGRESSION":
        return []
    found = {name: _decides(one).verdict for name, one in compared.items() if name != task.primary}
    return [
        f"{name.replace(',', ' ')} does not decide, and is worse by itself ({100 * one.difference:+.2f} pp, p = "
        f"{one.p_worse:.2g} for no loss)"
        for name, one in found.items()
        if one.label == "REGRESSION" and one.beyond_margin
    ]


def _metrics(samples: list[Sample]) -> list[str]:
    scored = [one.scores for one in samples if one.scores is not None]
    return list(scored[0]) if scored else []


def _table(samples: list[Sample], metric: str) -> dict[int, dict[_ItemName, float]]:
    """By seed: the score of each item that got an answer. An item without one is not counted as wrong."""
    table: dict[int, dict[_ItemName, float]] = {}
    for one in samples:
        row = table.setdefault(one.seed, {})
        if one.scores is not None:
            row[one.subtask, one.doc] = one.scores[metric]
    return table


def _answered(*tables: dict[int, dict[_ItemName, float]]) -> list[_ItemName]:
    """The items that got an answer in every pass of every side, in the order in which they were asked."""
    rows = [row for table in tables for row in table.values()]
    return [name for name in rows[0] if all(name in row for row in rows)] if rows else []


def _clusters(samples: list[Sample], items: list[_ItemName]) -> list[str] | None:
    names = {(one.subtask, one.doc): one.cluster for one in samples}
    found = [names[item] for item in items]
    return None if not found or None in found or len(set(found)) < 2 else [str(name) for name in found]  # noqa: PLR2004


def _scored(samples: list[Sample], task: Task) -> Scored:
    by_metric: dict[str, Accuracy] = {}
    by_seed: dict[int, float] = {}
    for metric in _metrics(samples):
        table = _table(samples, metric)
        items = _answered(table)
        if not items:
            continue
        means = [sum(row[item] for row in table.values()) / len(table) for item in items]
        by_metric[metric] = accuracy(means, _clusters(samples, items))
        if metric == task.primary:
            by_seed = {seed: sum(row[item] for item in items) / len(items) for seed, row in table.items()}
    empty = sum(task.kind == "generate" and one.error is None and not one.text.strip() for one in samples)
    errors = sum(one.error is not None for one in samples)
    return Scored(len(samples), errors, truncated(samples, task), empty, by_metric, by_seed)


def _compare(ours: list[Sample], theirs: list[Sample], metric: str, margin: float) -> Paired | Seeds | None:
    a, b = _table(ours, metric), _table(theirs, metric)
    items = _answered(a, b)
    if not items:
        return None
    rows_a, rows_b = ([[table[seed][item] for item in items] for seed in a] for table in (a, b))
    clusters = _clusters(ours, items)
    if len(rows_a) > 1:
        return over_seeds(rows_a, rows_b, clusters, margin)
    return paired(rows_a[0], rows_b[0], clusters, margin)


def _worst_case(ours: list[Sample], theirs: list[Sample], metric: str) -> float | None:
    """The mean difference if a missing answer were wrong for the candidate and right for the reference."""
    if not any(one.error is not None for one in (*ours, *theirs)):
        return None
    a = [one.scores[metric] if one.scores is not None else 0.0 for one in ours]
    b = [one.scores[metric] if one.scores is not None else 1.0 for one in theirs]
    return sum(a) / len(a) - sum(b) / len(b)
