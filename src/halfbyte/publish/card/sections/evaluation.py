"""Evaluation section: scores of this model and the reference, their difference, verdicts and methodology.

A difference that does not match its two scores, or lies outside its own interval, is reported as inconsistent.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

from halfbyte.evidence.fields import at, items, mapping, number, rows, texts, whole, words
from halfbyte.evidence.verdict import deciding
from halfbyte.publish.card.facts import CardFacts
from halfbyte.publish.card.figures import between, counted, p_value, percent, points
from halfbyte.publish.card.markdown import Markdown, code, phrase, table

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
    evaluation = card.get("eval")
    if evaluation is None:
        return {"missing": card.missing("eval")}
    tasks = rows(evaluation, "tasks")
    labels = {label for task in tasks if (label := words(task, "label")) in _MEANS}
    return {
        "missing": None,
        "scores": table(HEAD, [row for task in tasks for row in _rows(task)]),
        "meanings": [f"{label}: {_MEANS[label]}" for label in _MEANS if label in labels],
        "label": words(evaluation, "label"),
        "margin": points(evaluation, "arguments", "margin").lstrip("+"),
        "notes": [note for task in tasks for note in _notes(task)],
        "alike": words(evaluation, "alike"),
        "method": table(["", ""], _method(card, evaluation)),
    }


def contradicts_itself(compared: Mapping[str, Any]) -> bool:
    """Whether a difference does not match its own scores or interval."""
    candidate, reference, difference = (number(compared, key) for key in ("candidate", "reference", "difference"))
    low, high = number(compared, "interval", 0), number(compared, "interval", 1)
    if candidate is None or reference is None or difference is None or low is None or high is None:
        return True
    return abs(candidate - reference - difference) > _SMALL or not low - _SMALL <= difference <= high + _SMALL


def _rows(task: Mapping[str, Any]) -> list[list[Any]]:
    table_rows: list[list[Any]] = []
    primary = words(task, "primary")
    for metric in mapping(task, "candidate", "by_metric"):
        ours = mapping(task, "candidate", "by_metric", metric)
        theirs = mapping(task, "reference", "by_metric", metric)
        label = words(task, "label") if metric == primary else "-"
        name = code(metric.replace(",none", "").replace(",", " "))
        start = [code(task.get("task")), name, counted(ours, "items"), _score(ours)]
        compared = mapping(task, "compared", metric)
        if not compared:
            reference = _score(theirs) if theirs else "not measured"
            table_rows.append([*start, reference, *["not measured"] * 4, label])
        elif contradicts_itself(deciding(compared)):
            table_rows.append([*start, _score(theirs), "inconsistent in eval.json", *["-"] * 3, label])
        else:
            table_rows.append([*start, _score(theirs), *_difference(deciding(compared)), label])
    return table_rows


def _score(side: Mapping[str, Any]) -> str:
    error = number(side, "standard_error")
    shown = percent(side, "value")
    return shown if error is None or number(side, "value") is None else f"{shown} ± {100 * error:.2f}"


def _difference(pair: Mapping[str, Any]) -> list[str]:
    better, worse = whole(pair, "better"), whole(pair, "worse")
    flips = "not measured" if better is None or worse is None else f"{better:,} better, {worse:,} worse"
    return [points(pair, "difference"), between(items(pair, "interval"), percents=True, signed=True), flips,
            p_value(pair, "p_value")]  # fmt: skip


def _notes(task: Mapping[str, Any]) -> list[Markdown]:
    name = code(task.get("task"))
    notes = [phrase("{}: {}", name, note) for note in (*texts(task, "anomalies"), *texts(task, "notes"))]
    for metric, compared in mapping(task, "compared").items():
        seeds = items(compared, "candidate", "by_seed")
        if not at(compared, "decides") or not seeds:
            continue
        sides = [f"{percent(compared, side, 'mean')} ± {_stdev(compared, side)}" for side in ("candidate", "reference")]
        text = "{} {}: {} seeds, {} vs. {} (mean ± standard deviation across seeds; the verdict uses the table above)"
        notes.append(phrase(text, name, code(metric), len(seeds), *sides))
    return notes


def _stdev(compared: Any, side: str) -> str:
    stdev = number(compared, side, "stdev")
    return "not measured" if stdev is None else f"{100 * stdev:.2f}"


def _method(card: CardFacts, evaluation: Mapping[str, Any]) -> list[tuple[str, Any]]:
    limit = whole(evaluation, "arguments", "limit")
    server = mapping(evaluation, "candidate", "told")
    tasks = rows(evaluation, "tasks")
    requests = [f"{task.get('task')}: {task.get('asked_as') or 'not stated'}, {_shots(task)}" for task in tasks]
    counts = [
        f"{task.get('task')}: {counted(task, 'candidate', 'errors')} failed, "
        f"{counted(task, 'candidate', 'truncated')} truncated, {counted(task, 'candidate', 'empty')} empty"
        for task in tasks
    ]
    pairs = (deciding(mapping(task, "compared", words(task, "primary") or "")) for task in tasks)
    methods = {method for pair in pairs if (method := words(pair, "method"))}
    return [
        ("Harness", phrase("lm-evaluation-harness {}, halfbyte {}", evaluation.get("lm_eval"),
                           evaluation.get("halfbyte"))),
        ("Suite", phrase("{} (SHA-256 {})", code(at(evaluation, "suite", "name")),
                         code(at(evaluation, "suite", "hash")))),
        ("Items", f"the first {limit:,} of each task (--limit {limit})" if limit else "all items of each task"),
        ("Request format", "; ".join(requests)),
        ("Seeds", _seeds(evaluation)),
        ("Concurrent requests", counted(evaluation, "concurrency")),
        ("Invalid answers", "; ".join(counts)),
        ("Statistical test", "; ".join(sorted(methods)) or "none: no reference was evaluated"),
        ("Server", phrase("{} {}, context {}", server.get("owned_by") or "engine", server.get("version"),
                          counted(evaluation, "candidate", "max_context"))),
        ("Reference", _reference(card, evaluation)),
        ("Server differences", "; ".join(texts(evaluation, "differences")) or "none found"),
        ("Date and duration", phrase("{}, {} s", evaluation.get("started"), counted(evaluation, "seconds"))),
    ]  # fmt: skip


def _shots(task: Mapping[str, Any]) -> str:
    shots = whole(task, "shots")
    return "task-default shots" if shots is None else f"{shots}-shot"


def _seeds(evaluation: Mapping[str, Any]) -> str:
    groups = [
        ", ".join(f"{name} {seed}" for name, seed in group.items())
        for group in rows(evaluation, "seeds", "shown_examples")
    ]
    requests = counted(evaluation, "seeds", "requests").replace(",", "")
    return f"requests {requests}; few-shot examples: {' / '.join(groups) or 'none'}"


def _reference(card: CardFacts, evaluation: Mapping[str, Any]) -> Markdown:
    if not any(mapping(task, "reference") for task in rows(evaluation, "tasks")):
        return Markdown("not measured")
    earlier = words(evaluation, "arguments", "baseline")
    if earlier and PurePath(earlier).name == SOURCE_FOLDER:
        return phrase("the source model, {}, evaluated in an earlier run", card.base)
    if earlier:
        return phrase("evaluated in an earlier run, described in its eval.json; the source model is {}", card.base)
    return phrase("{}, evaluated in the same run", code(words(evaluation, "reference", "model") or "not stated"))
