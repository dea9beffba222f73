"""Judge tasks from their items: accuracies, the deciding comparison, and anomalies."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from halfbyte.evaluate.anomalies import anomalies, between, truncated
from halfbyte.evaluate.samples import Sample
from halfbyte.evaluate.suites import Suite, Task
from halfbyte.evidence.evaluation import Label, SideScores, TaskResult
from halfbyte.statistics.pairs import over_seeds, paired
from halfbyte.statistics.results import Accuracy, OverSeeds, PairedScores, deciding
from halfbyte.statistics.sampling import accuracy
from halfbyte.statistics.verdicts import judge_suite

_ItemName = tuple[str, int]


def judge(
    suite: Suite, candidate: Sequence[Sample], reference: Sequence[Sample] | None, margin: float
) -> list[TaskResult]:
    """Judge every task of a suite. A REGRESSION must hold after Holm's correction for the number of tasks."""
    judged: list[TaskResult] = []
    for task in suite.tasks:
        ours = [sample for sample in candidate if sample.task == task.task]
        theirs = None if reference is None else [sample for sample in reference if sample.task == task.task]
        judged.append(_judge_task(task, ours, theirs, margin))
    pairs = {row.task: row.deciding(row.primary) for row in judged if row.label != "ANOMALOUS"}
    valid = {task: pair.verdict for task, pair in pairs.items() if pair is not None}
    corrected = judge_suite(valid).verdicts if valid else {}
    return [_with_label(row, corrected.get(row.task)) for row in judged]


def _with_label(judged: TaskResult, corrected: Label | None) -> TaskResult:
    if corrected is None or judged.label != "REGRESSION" or corrected == judged.label:
        return judged
    note = f"{judged.label} alone, but not after Holm's correction for the number of tasks"
    return replace(judged, label=corrected, notes=(*judged.notes, note))


def _judge_task(task: Task, ours: list[Sample], theirs: list[Sample] | None, margin: float) -> TaskResult:
    wrong = [f"candidate: {reason}" for reason in anomalies(ours, task)]
    compared: dict[str, PairedScores | OverSeeds] = {}
    worst = None
    if theirs is not None:
        wrong += [f"reference: {reason}" for reason in anomalies(theirs, task)] + between(ours, theirs, task)
        compared = {name: result for name in _metrics(ours) if (result := _compare(ours, theirs, name, margin))}
        worst = _worst_case(ours, theirs, task.primary)
    label: Label = "SCORED"
    if wrong:
        label = "ANOMALOUS"
    elif task.primary in compared:
        label = deciding(compared[task.primary]).verdict.label
    other = None if theirs is None else _scored(theirs, task)
    notes = [*_notes(ours, task), *_ended_programs(ours, "candidate"), *_ended_programs(theirs or [], "reference")]
    notes += _other_losses(compared, task)
    if label == "ACCEPT" and worst is not None and not _holds(compared[task.primary], worst, margin):
        label = "INCONCLUSIVE"
        notes.append(
            "ACCEPT for the existing answers, but not if every missing answer counted against the candidate; run the "
            "same command to retry them"
        )
    return TaskResult(
        task=task.task,
        prompt_format="chat, with the server's template" if task.api == "chat" else "completions, no template",
        shots=task.shots,
        label=label,
        primary=task.primary,
        candidate=_scored(ours, task),
        reference=other,
        comparisons=compared,
        worst_case_difference=worst,
        anomalies=tuple(wrong),
        notes=tuple(notes),
    )


def _notes(samples: list[Sample], task: Task) -> list[str]:
    """Return the caveats about the prompts of a task."""
    notes: list[str] = []
    targets = {sample.target for sample in samples}
    if len(targets) == 1 and len(samples) > 1 and (task.kind == "choose" or task.short_answer):
        notes.append("all items have the same correct answer, so a constant answer scores 100 %; use more items")
    prompts: dict[_ItemName, set[str]] = {}
    for sample in samples:
        prompts.setdefault((sample.subtask, sample.doc), set()).add(sample.prompt_hash)
    seeds = {sample.seed for sample in samples}
    if len(seeds) > 1 and all(len(hashes) == 1 for hashes in prompts.values()):
        notes.append(f"all {len(seeds)} seeds use the same prompts, so only the server's noise differs")
    return notes


def _ended_programs(samples: list[Sample], side: str) -> list[str]:
    """Report programs that reached a limit and may have been correct."""
    ended = Counter(str(run["ended"]) for sample in samples for run in sample.programs if run["ended"] != "exit")
    counts = ", ".join(f"{reason} {count}" for reason, count in sorted(ended.items()))
    return [f"{side}: {ended.total()} programs reached a limit and count as wrong ({counts})"] if ended else []


def _holds(comparison: PairedScores | OverSeeds, worst: float, margin: float) -> bool:
    """Return whether the bound stays within the margin for the worst-case difference."""
    verdict = deciding(comparison).verdict
    return verdict.lower - (verdict.difference - worst) > -margin


def _other_losses(compared: dict[str, PairedScores | OverSeeds], task: Task) -> list[str]:
    """Report losses beyond the margin in metrics other than the primary one."""
    if task.primary in compared and deciding(compared[task.primary]).verdict.label == "REGRESSION":
        return []
    verdicts = {name: deciding(comparison).verdict for name, comparison in compared.items() if name != task.primary}
    return [
        f"{name.replace(',', ' ')} is worse ({100 * verdict.difference:+.2f} pp, p = {verdict.p_worse:.2g} for no "
        "loss), but is not the primary metric"
        for name, verdict in verdicts.items()
        if verdict.label == "REGRESSION" and verdict.beyond_margin
    ]


def _metrics(samples: list[Sample]) -> list[str]:
    scored = [sample.scores for sample in samples if sample.scores is not None]
    return list(scored[0]) if scored else []


def _table(samples: list[Sample], metric: str) -> dict[int, dict[_ItemName, float]]:
    """Return the scores of answered items, by seed. Missing answers are not counted as wrong."""
    table: dict[int, dict[_ItemName, float]] = {}
    for sample in samples:
        row = table.setdefault(sample.seed, {})
        if sample.scores is not None:
            row[sample.subtask, sample.doc] = sample.scores[metric]
    return table


def _answered(*tables: dict[int, dict[_ItemName, float]]) -> list[_ItemName]:
    """Return the items that were answered in every pass of every side, in order."""
    rows = [row for table in tables for row in table.values()]
    return [name for name in rows[0] if all(name in row for row in rows)] if rows else []


def _clusters(samples: list[Sample], items: list[_ItemName]) -> list[str] | None:
    names = {(sample.subtask, sample.doc): sample.cluster for sample in samples}
    clusters = [names[item] for item in items]
    return None if not clusters or None in clusters or len(set(clusters)) < 2 else [str(name) for name in clusters]  # noqa: PLR2004


def _scored(samples: list[Sample], task: Task) -> SideScores:
    by_metric: dict[str, Accuracy] = {}
    by_seed: dict[str, float] = {}
    for metric in _metrics(samples):
        table = _table(samples, metric)
        items = _answered(table)
        if not items:
            continue
        means = [sum(row[item] for row in table.values()) / len(table) for item in items]
        by_metric[metric] = accuracy(means, _clusters(samples, items))
        if metric == task.primary:
            by_seed = {str(seed): sum(row[item] for item in items) / len(items) for seed, row in table.items()}
    empty = sum(task.kind == "generate" and sample.error is None and not sample.text.strip() for sample in samples)
    errors = sum(sample.error is not None for sample in samples)
    return SideScores(
        samples=len(samples),
        errors=errors,
        truncated=truncated(samples, task),
        empty=empty,
        by_metric=by_metric,
        by_seed=by_seed,
    )


def _compare(ours: list[Sample], theirs: list[Sample], metric: str, margin: float) -> PairedScores | OverSeeds | None:
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
    """Return the mean difference if missing answers were wrong for the candidate and correct for the reference."""
    if not any(sample.error is not None for sample in (*ours, *theirs)):
        return None
    a = [sample.scores[metric] if sample.scores is not None else 0.0 for sample in ours]
    b = [sample.scores[metric] if sample.scores is not None else 1.0 for sample in theirs]
    return sum(a) / len(a) - sum(b) / len(b)
