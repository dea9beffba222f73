"""Probes section: each probe of the running server with its result, or the reason it was skipped."""

from __future__ import annotations

from typing import Any

from halfbyte.evidence.probes import Excerpt, ProbeCoverage, ProbeResult, Probes, coverage
from halfbyte.publish.card.facts import CardFacts
from halfbyte.publish.card.figures import counted
from halfbyte.publish.card.markdown import Markdown, code, fenced, phrase, table

_SHOWN_FAILURES = 6
_MARKS = {"passed": "pass", "failed": "**FAIL**", "broken": "**broken**", "skipped": "skipped"}


def facts(card: CardFacts) -> dict[str, Any]:
    """Return the table of probes and the first failures."""
    report = card.get(Probes)
    if report is None:
        return {"missing": card.missing(Probes)}
    server = report.endpoint.reported
    return {
        "missing": None,
        "covered": covered_words(coverage(report.probes), report.budget_s),
        "rows": table(["Probe", "Result", "Measured", "Required"], [_row(row) for row in report.probes]),
        "counts": ", ".join(f"{counted(report.counts.get(verdict))} {verdict}" for verdict in _MARKS),
        "accepted": report.accepted,
        "method": phrase(
            "Profile {}, seed {}, {} {} with a context of {} tokens, {}, {} s. Code written by the model ran {}.",
            code(report.profile), counted(report.seed), server.get("owned_by") or "engine", server.get("version"),
            counted(report.context), report.started, counted(report.seconds), report.sandbox,
        ),
        "reference": "A reference server was probed in the same run." if report.reference else
        "No reference server was probed: comparative probes were judged on their own or skipped.",
        "failures": [_failure(row) for row in report.probes if row.verdict == "failed"][:_SHOWN_FAILURES],
    }  # fmt: skip


def covered_words(covered: ProbeCoverage, budget_s: float | None) -> Markdown:
    """Return how many probes ran, in bold if some were omitted for the budget or an unresponsive server."""
    of = f" of {budget_s:,.0f} s" if budget_s is not None else ""
    summary = phrase("{}", covered.sentence().replace("the budget", f"the budget{of}"))
    groups = phrase(" By group: {}.", covered.by_group()) if covered.by_group() else ""
    incomplete = covered.over_budget or covered.unreachable
    return Markdown((f"**{summary}.**" if incomplete else f"{summary}.") + groups)


def _row(row: ProbeResult) -> list[Any]:
    return [row.title, Markdown(_MARKS[row.verdict]), row.measured or "-", row.threshold or "-"]


def _failure(row: ProbeResult) -> dict[str, Any]:
    """Return the first failed answer, which is untrusted text."""
    excerpt = row.excerpts[0] if row.excerpts else Excerpt("", "")
    return {
        "title": phrase("{}: {} ({})", row.title, row.measured, excerpt.problem or "no text"),
        "text": fenced(excerpt.text[-600:], "text") if excerpt.text else None,
    }
