"""Evaluation section: scores of this model and the reference, their difference, verdicts and methodology.

A difference that does not match its two scores, or lies outside its own interval, is reported as inconsistent.
"""

from __future__ import annotations

from pathlib import PurePath
from typing import Any

from halfbyte.evidence.evaluation import Evaluation, TaskResult
from halfbyte.publish.card.facts import CardFacts
from halfbyte.publish.card.figures import between, counted, p_value, percent, points
from halfbyte.publish.card.markdown import Markdown, code, phrase, table
from halfbyte.statistics.results import Accuracy, OverSeeds, PairedScores, SeedScores

HEAD = ["Task", "Metric", "Items", "This model", "Reference", "Difference", "95% CI, pp", "Flips", "p", "Verdict"]
_MEANS = {
    "ACCEPT": "a loss larger than the margin is ruled out",
    "REGRESSION": "worse than the reference, beyond the margin",
    "INCONCLUSIVE": "too few items to decide",
    "ANOMALOUS": "not a valid score: the answers are broken",
    "SCORED": "scored without a reference",
}
_SMALL = 1e-9
SOURCE_FOLDER = "eval-source"  # the source's results in `halfbyte release`


def facts(card: CardFacts) -> dict[str, Any]:
    """Return the table of scores, its notes and the methodology."""
    evaluation = card.get(Evaluation)
    if evaluation is None:
        return {"missing": card.missing(Evaluation)}
    labels = {task.label for task in evaluation.tasks}
    return {
        "missing": None,
        "scores": table(HEAD, [row for task in evaluation.tasks for row in _rows(task)]),
        "meanings": [f"{label}: {meaning}" for label, meaning in _MEANS.items() if label in labels],
        "label": evaluation.label,
        "margin": points(evaluation.arguments.margin).lstrip("+"),
        "notes": [note for task in evaluation.tasks for note in _notes(task)],
        "same_checkpoint_warning": evaluation.same_checkpoint_warning,
        "method": table(["", ""], _method(card, evaluation)),
    }


def contradicts_itself(pair: PairedScores) -> bool:
    """Whether a difference does not match its own scores or interval."""
    low, high = pair.interval
    follows = abs(pair.candidate - pair.reference - pair.difference) <= _SMALL
    return not follows or not low - _SMALL <= pair.difference <= high + _SMALL


def _rows(task: TaskResult) -> list[list[Any]]:
    table_rows: list[list[Any]] = []
    for metric, ours in task.candidate.by_metric.items():
        theirs = task.reference.by_metric.get(metric) if task.reference else None
        label = task.label if metric == task.primary else "-"
        name = code(metric.replace(",none", "").replace(",", " "))
        start = [code(task.task), name, counted(ours.items), _score(ours), _score(theirs) if theirs else "not measured"]
        pair = task.deciding(metric)
        if pair is None:
            table_rows.append([*start, *["not measured"] * 4, label])
        elif contradicts_itself(pair):
            table_rows.append([*start, "inconsistent in eval.json", *["-"] * 3, label])
        else:
            table_rows.append([*start, *_difference(pair), label])
    return table_rows


def _score(score: Accuracy) -> str:
    shown = percent(score.value)
    return shown if score.standard_error is None else f"{shown} ± {100 * score.standard_error:.2f}"


def _difference(pair: PairedScores) -> list[str]:
    flips = f"{pair.better:,} better, {pair.worse:,} worse"
    return [points(pair.difference), between(*pair.interval), flips, p_value(pair.p_value)]


def _notes(task: TaskResult) -> list[Markdown]:
    name = code(task.task)
    notes = [phrase("{}: {}", name, note) for note in (*task.anomalies, *task.notes)]
    for metric, compared in task.comparisons.items():
        if isinstance(compared, OverSeeds):
            text = (
                "{} {}: {} seeds, {} vs. {} (mean ± standard deviation across seeds; the verdict uses the table above)"
            )
            sides = (_over_seeds(side) for side in (compared.candidate, compared.reference))
            notes.append(phrase(text, name, code(metric), len(compared.candidate.by_seed), *sides))
    return notes


def _over_seeds(side: SeedScores) -> str:
    return f"{percent(side.mean)} ± {100 * side.stdev:.2f}"


def _method(card: CardFacts, evaluation: Evaluation) -> list[tuple[str, Any]]:
    limit, server, tasks = evaluation.arguments.limit, evaluation.candidate.reported, evaluation.tasks
    requests = [f"{task.task}: {task.prompt_format}, {_shots(task)}" for task in tasks]
    counts = [
        f"{task.task}: {task.candidate.errors:,} failed, {task.candidate.truncated:,} truncated, "
        f"{task.candidate.empty:,} empty"
        for task in tasks
    ]
    pairs = (task.deciding(task.primary) for task in tasks)
    methods = {pair.method for pair in pairs if pair is not None}
    return [
        ("Harness", phrase("lm-evaluation-harness {}, halfbyte {}", evaluation.lm_eval, evaluation.halfbyte)),
        ("Suite", phrase("{} (SHA-256 {})", code(evaluation.suite.name), code(evaluation.suite.hash))),
        ("Items", f"the first {limit:,} of each task (--limit {limit})" if limit else "all items of each task"),
        ("Request format", "; ".join(requests)),
        ("Seeds", _seeds(evaluation)),
        ("Concurrent requests", counted(evaluation.concurrency)),
        ("Invalid answers", "; ".join(counts)),
        ("Statistical test", "; ".join(sorted(methods)) or "none: no reference was evaluated"),
        ("Server", phrase("{} {}, context {}", server.get("owned_by") or "engine", server.get("version"),
                          counted(evaluation.candidate.max_context))),
        ("Reference", _reference(card, evaluation)),
        ("Server differences", "; ".join(evaluation.differences) or "none found"),
        ("Date and duration", phrase("{}, {} s", evaluation.started, counted(evaluation.seconds))),
    ]  # fmt: skip


def _shots(task: TaskResult) -> str:
    return "task-default shots" if task.shots is None else f"{task.shots}-shot"


def _seeds(evaluation: Evaluation) -> str:
    seeds = evaluation.seeds
    groups = [", ".join(f"{name} {seed}" for name, seed in group.items()) for group in seeds.fewshot]
    requests = "not measured" if seeds.requests is None else str(seeds.requests)
    return f"requests {requests}; few-shot examples: {' / '.join(groups) or 'none'}"


def _reference(card: CardFacts, evaluation: Evaluation) -> Markdown:
    if not any(task.reference for task in evaluation.tasks):
        return Markdown("not measured")
    earlier = evaluation.arguments.baseline
    if earlier and PurePath(earlier).name == SOURCE_FOLDER:
        return phrase("the source model, {}, evaluated in an earlier run", card.base)
    if earlier:
        return phrase("evaluated in an earlier run, described in its eval.json; the source model is {}", card.base)
    model = evaluation.reference.model if evaluation.reference else "not stated"
    return phrase("{}, evaluated in the same run", code(model))
