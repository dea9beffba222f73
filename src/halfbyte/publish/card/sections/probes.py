"""Each probe of the running server with its result; those that were skipped say why."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from halfbyte.publish.card.figures import counted
from halfbyte.publish.card.known import Known
from halfbyte.publish.card.markdown import Markdown, code, fenced, phrase, table
from halfbyte.publish.card.reading import mapping, number, rows, whole, words
from halfbyte.validate.probe_coverage import Coverage, coverage

_SHOWN_FAILURES = 6
_LENGTH, _WHOLE = re.compile(r"\d+k "), 262_144
_NAMES = Markdown(
    "Probes of long contexts are named for a context of 262,144 tokens; the table says how long they were here."
)
_MARKS = {"passed": "pass", "failed": "**FAIL**", "broken": "**broken**", "skipped": "skipped"}


def facts(known: Known) -> dict[str, Any]:
    """Return the table, and what the first failures looked like."""
    found = known.get("probe")
    if found is None:
        return {"missing": known.missing("probe")}
    probes = rows(found, "probes")
    told = mapping(found, "endpoint", "told")
    return {
        "missing": None,
        "covered": covered_words(coverage(probes), number(found, "budget_s")),
        "rows": table(["Probe", "Result", "Measured", "Wanted"], [_row(row) for row in probes]),
        "counts": ", ".join(f"{counted(found, 'counts', kind)} {kind}" for kind in _MARKS),
        "accepted": found.get("accepted") is True,
        "method": phrase(
            "Profile {}, seed {}, {} {} with a context of {} tokens, {}, {} s. Programs that the model wrote ran {}.",
            code(words(found, "profile") or "not stated"), counted(found, "seed"), told.get("owned_by") or "engine",
            told.get("version"), counted(found, "context"), words(found, "started"), counted(found, "seconds"),
            words(found, "sandbox"),
        ),
        "lengths": _NAMES if _are_shorter(found, probes) else None,
        "reference": "A reference server was asked beside it." if found.get("reference") else
        "No reference server was asked: what is compared with one was judged alone or skipped.",
        "failures": [_failure(row) for row in probes if row.get("verdict") == "failed"][:_SHOWN_FAILURES],
    }  # fmt: skip


def covered_words(covered: Coverage, budget_s: float | None) -> Markdown:
    """Return how many ran, and loudly where time was what the others lacked: what was not asked did not pass."""
    of = f" of {budget_s:,.0f} s" if budget_s is not None else ""
    said = phrase("{}", covered.sentence().replace("the budget", f"the budget{of}"))
    return Markdown(f"**{said}.**") if covered.over_budget or covered.unreachable else Markdown(f"{said}.")


def _are_shorter(found: Mapping[str, Any], probes: list[Mapping[str, Any]]) -> bool:
    """Whether probes were asked at other lengths than their titles say."""
    asked = any(_LENGTH.match(words(row, "title") or "") and row.get("verdict") != "skipped" for row in probes)
    return asked and (whole(found, "context") or _WHOLE) < _WHOLE


def _row(row: Mapping[str, Any]) -> list[Any]:
    verdict = words(row, "verdict")
    mark = Markdown(_MARKS[verdict]) if verdict in _MARKS else verdict
    return [words(row, "title"), mark, words(row, "measured") or "-", words(row, "threshold") or "-"]


def _failure(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the first answer that failed, which is hostile text."""
    shown = mapping(row, "shown", 0)
    text = words(shown, "text")
    return {
        "title": phrase("{}: {} ({})", words(row, "title"), words(row, "measured"), words(shown, "what") or "no text"),
        "text": fenced(text[-600:], "text") if text else None,
    }
