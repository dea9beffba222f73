"""Scores of both sides, their difference and what the statistics make of it; and how they were asked for.

A difference that does not follow from its own two scores, or lies outside its own interval, is no evidence.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

from halfbyte.publish.card.figures import between, counted, p_value, percent, points
from halfbyte.publish.card.known import Known
from halfbyte.publish.card.markdown import Markdown, code, phrase, table
from halfbyte.publish.card.reading import at, items, mapping, number, rows, texts, whole, words

HEAD = ["Task", "Metric", "Items", "This", "Reference", "Difference", "95 % interval, pp", "Flips", "p", "Verdict"]
_MEANS = {
    "ACCEPT": "a loss beyond the margin is ruled out",
    "REGRESSION": "worse than the reference, beyond the margin",
    "INCONCLUSIVE": "too few items to tell",
    "ANOMALOUS": "not a score: the answers are broken",
    "SCORED": "no reference was asked",
}
_SMALL = 1e-9
SOURCE_FOLDER = "eval-source"  # where `halfbyte release` keeps what the source scored


def facts(known: Known) -> dict[str, Any]:
    """Return the table of scores, its sentences and the method."""
    found = known.get("eval")
    if found is None:
        return {"missing": known.missing("eval")}
    tasks = rows(found, "tasks")
    labels = {label for task in tasks if (label := words(task, "label")) in _MEANS}
    return {
        "missing": None,
        "scores": table(HEAD, [row for task in tasks for row in _rows(task)]),
        "meanings": [f"{label}: {_MEANS[label]}" for label in _MEANS if label in labels],
        "label": words(found, "label"),
        "margin": points(found, "arguments", "margin").lstrip("+"),
        "notes": [note for task in tasks for note in _notes(task)],
        "alike": words(found, "alike"),
        "method": table(["", ""], _method(known, found)),
    }


def decided(compared: Any) -> Mapping[str, Any]:
    """Return the comparison by items; with several seeds it is the one over their average."""
    return mapping(compared, "decides") or mapping(compared)


def contradicts_itself(compared: Mapping[str, Any]) -> bool:
    """Whether a difference does not follow from its own numbers."""
    ours, theirs, apart = (number(compared, key) for key in ("candidate", "reference", "difference"))
    low, high = number(compared, "interval", 0), number(compared, "interval", 1)
    if ours is None or theirs is None or apart is None or low is None or high is None:
        return True
    return abs(ours - theirs - apart) > _SMALL or not low - _SMALL <= apart <= high + _SMALL


def _rows(task: Mapping[str, Any]) -> list[list[Any]]:
    found: list[list[Any]] = []
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
            found.append([*start, reference, *["not measured"] * 4, label])
        elif contradicts_itself(decided(compared)):
            found.append([*start, _score(theirs), "contradicts itself in eval.json", *["-"] * 3, label])
        else:
            found.append([*start, _score(theirs), *_difference(decided(compared)), label])
    return found


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
    told = [*texts(task, "anomalies"), *texts(task, "notes")]
    found = [phrase("{}: {}", name, note) for note in told]
    for metric, compared in mapping(task, "compared").items():
        seeds = items(compared, "candidate", "by_seed")
        if not at(compared, "decides") or not seeds:
            continue
        sides = [f"{percent(compared, side, 'mean')} ± {_stdev(compared, side)}" for side in ("candidate", "reference")]
        text = "{} {}: over {} seeds {} against {} (mean ± the seeds' standard deviation; the table decides)"
        found.append(phrase(text, name, code(metric), len(seeds), *sides))
    return found


def _stdev(compared: Any, side: str) -> str:
    found = number(compared, side, "stdev")
    return "not measured" if found is None else f"{100 * found:.2f}"


def _method(known: Known, found: Mapping[str, Any]) -> list[tuple[str, Any]]:
    limit = whole(found, "arguments", "limit")
    told = mapping(found, "candidate", "told")
    asked = [
        f"{task.get('task')}: {task.get('asked_as') or 'not stated'}, {_shots(task)}" for task in rows(found, "tasks")
    ]
    counts = [
        f"{task.get('task')}: {counted(task, 'candidate', 'errors')} without an answer, "
        f"{counted(task, 'candidate', 'truncated')} cut, {counted(task, 'candidate', 'empty')} empty"
        for task in rows(found, "tasks")
    ]
    pairs = (decided(mapping(task, "compared", words(task, "primary") or "")) for task in rows(found, "tasks"))
    methods = {method for pair in pairs if (method := words(pair, "method"))}
    return [
        ("Harness", phrase("lm-evaluation-harness {}, halfbyte {}", found.get("lm_eval"), found.get("halfbyte"))),
        ("Suite", phrase("{} (SHA-256 {})", code(at(found, "suite", "name")), code(at(found, "suite", "hash")))),
        ("Items", f"the first {limit:,} of each task (--limit {limit})" if limit else "all of each task"),
        ("Asked as", "; ".join(asked)),
        ("Seeds", _seeds(found)),
        ("Requests at once", counted(found, "concurrency")),
        ("Answers", "; ".join(counts)),
        ("Decided by", "; ".join(sorted(methods)) or "not measured: no reference was asked"),
        ("Server", phrase("{} {}, context {}", told.get("owned_by") or "engine", told.get("version"),
                          counted(found, "candidate", "max_context"))),
        ("Reference", _reference(known, found)),
        ("Differences between the servers", "; ".join(texts(found, "differences")) or "none found"),
        ("Measured", phrase("{}, {} s", found.get("started"), counted(found, "seconds"))),
    ]  # fmt: skip


def _shots(task: Mapping[str, Any]) -> str:
    shots = whole(task, "shots")
    return "shots as the task has them" if shots is None else f"{shots}-shot"


def _seeds(found: Mapping[str, Any]) -> str:
    shown = [
        ", ".join(f"{name} {seed}" for name, seed in one.items()) for one in rows(found, "seeds", "shown_examples")
    ]
    return f"requests {counted(found, 'seeds', 'requests').replace(',', '')}; examples: {' / '.join(shown) or 'none'}"


def _reference(known: Known, found: Mapping[str, Any]) -> Markdown:
    if not any(mapping(task, "reference") for task in rows(found, "tasks")):
        return Markdown("not measured: `halfbyte eval URL --against URL2` asks both")
    earlier = words(found, "arguments", "baseline")
    if earlier and PurePath(earlier).name == SOURCE_FOLDER:
        return phrase("the source, {}, asked in an earlier run", known.base)
    if earlier:
        return phrase("asked in an earlier run, whose eval.json says of what; the source is {}", known.base)
    return phrase(
        "the server's model {}, asked in the same run", code(words(found, "reference", "model") or "not stated")
    )
