"""Probes section: each probe of the running server with its result, or the reason it was skipped."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from halfbyte.evidence.fields import mapping, number, rows, words
from halfbyte.probe.coverage import Coverage, coverage
from halfbyte.publish.card.facts import CardFacts
from halfbyte.publish.card.figures import counted
from halfbyte.publish.card.markdown import Markdown, code, fenced, phrase, table

_SHOWN_FAILURES = 6
_MARKS = {"passed": "pass", "failed": "**FAIL**", "broken": "**broken**", "skipped": "skipped"}


def facts(card: CardFacts) -> dict[str, Any]:
    """Return the table of probes and the first failures."""
    found = card.get("probe")
    if found is None:
        return {"missing": card.missing("probe")}
    probes = rows(found, "probes")
    server = mapping(found, "endpoint", "told")
    return {
        "missing": None,
        "covered": covered_words(coverage(probes), number(found, "budget_s")),
        "rows": table(["Probe", "Result", "Measured", "Required"], [_row(row) for row in probes]),
        "counts": ", ".join(f"{counted(found, 'counts', kind)} {kind}" for kind in _MARKS),
        "accepted": found.get("accepted") is True,
        "method": phrase(
            "Profile {}, seed {}, {} {} with a context of {} tokens, {}, {} s. Code written by the model ran {}.",
            code(words(found, "profile") or "not stated"), counted(found, "seed"), server.get("owned_by") or "engine",
            server.get("version"), counted(found, "context"), words(found, "started"), counted(found, "seconds"),
            words(found, "sandbox"),
        ),
        "reference": "A reference server was probed in the same run." if found.get("reference") else
        "No reference server was probed: comparative probes were judged on their own or skipped.",
        "failures": [_failure(row) for row in probes if row.get("verdict") == "failed"][:_SHOWN_FAILURES],
    }  # fmt: skip


def covered_words(covered: Coverage, budget_s: float | None) -> Markdown:
    """Return how many probes ran, in bold if some were omitted for the budget or an unresponsive server."""
    of = f" of {budget_s:,.0f} s" if budget_s is not None else ""
    summary = phrase("{}", covered.sentence().replace("the budget", f"the budget{of}"))
    groups = phrase(" By group: {}.", covered.by_group()) if covered.by_group() else ""
    incomplete = covered.over_budget or covered.unreachable
    return Markdown((f"**{summary}.**" if incomplete else f"{summary}.") + groups)


def _row(row: Mapping[str, Any]) -> list[Any]:
    verdict = words(row, "verdict")
    mark = Markdown(_MARKS[verdict]) if verdict in _MARKS else verdict
    return [words(row, "title"), mark, words(row, "measured") or "-", words(row, "threshold") or "-"]


def _failure(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the first failed answer, which is untrusted text."""
    shown = mapping(row, "shown", 0)
    text = words(shown, "text")
    return {
        "title": phrase("{}: {} ({})", words(row, "title"), words(row, "measured"), words(shown, "what") or "no text"),
        "text": fenced(text[-600:], "text") if text else None,
    }
