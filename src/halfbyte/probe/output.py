"""Console output: the result table as on a model card, details of the failures with known causes, and progress."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import Any, cast

import yaml
from pydantic import TypeAdapter

from halfbyte.probe.judging import MOST_SHOWN, marked, visible
from halfbyte.probe.probe import Excerpt, Probe, Verdict
from halfbyte.probe.profiles import Questions
from halfbyte.probe.report import Report, Result
from halfbyte.ui.console import SYMBOLS, Column, Level, Output

COLUMNS = (
    Column("title", "probe"),
    Column("result", "result"),
    Column("measured", "measured"),
    Column("threshold", "threshold"),
    Column("evidence", "evidence"),
)
_LEVELS: dict[Verdict, Level] = {
    Verdict.PASSED: "good", Verdict.FAILED: "bad", Verdict.BROKEN: "bad", Verdict.SKIPPED: "note",
}  # fmt: skip
_LONGEST_CELL = 70


def rows(results: Sequence[Result]) -> list[dict[str, Any]]:
    """Return the rows of the table."""
    return [
        {
            "title": result.probe.title,
            "result": f"{SYMBOLS[_level(result)]} {result.finding.verdict.value}"
            + ("" if result.probe.gate else " (not a gate)"),
            "measured": _short(visible(result.finding.measured)),
            "threshold": result.finding.threshold,
            "evidence": f"{len(result.traces):,} requests" if result.traces else "",
        }
        for result in results
    ]


def _level(result: Result) -> Level:
    level = _LEVELS[result.finding.verdict]
    return "note" if level == "bad" and not result.probe.gate else level


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST_CELL else text[: _LONGEST_CELL - 1] + "…"


def show(out: Output, report: Report) -> None:
    """Print the table, then every failure with the wrong part marked and its known causes."""
    if out.as_json:
        out.text("", _printable(report.record().as_json()))
        return
    out.table(rows(report.results), COLUMNS)
    for result in report.results:
        if result.finding.verdict in {Verdict.FAILED, Verdict.BROKEN}:
            out.verdicts([(_level(result), _explained(result))])
    out.verdicts([("note", report.covered()), ("good" if report.accepted else "bad", report.summary())])


def _printable(value: Any) -> Any:
    """Escape lone surrogates, which cannot be encoded as UTF-8."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        return {key: _printable(inner) for key, inner in cast("dict[str, Any]", value).items()}
    return [_printable(inner) for inner in cast("list[Any]", value)] if isinstance(value, list) else value


def _explained(result: Result) -> str:
    finding = result.finding
    lines = [f"{result.probe.name}: {visible(finding.measured)}", f"why it matters: {result.probe.reason}"]
    lines += [_line(shown) for shown in finding.excerpts[:MOST_SHOWN]]
    if len(finding.excerpts) > MOST_SHOWN:
        lines.append(f"and {len(finding.excerpts) - MOST_SHOWN:,} more in probe.json")
    known = causes().get(finding.cause or "")
    if known:
        lines += [f"known cause: {known.known}", f"try: {known.fix}"]
    return "\n".join(lines)


def _line(shown: Excerpt) -> str:
    row = f"  (row {shown.trace})" if shown.trace else ""
    return f"{visible(shown.problem)}{row}\n    {marked(shown)}"


# Progress of a run: one line when a probe starts, with the remaining time, and one when it ends.

_LONG_S = 10.0
_MINUTE, _HOUR = 60.0, 3600.0


def duration(seconds: float) -> str:
    """Format a duration."""
    if seconds < 2 * _MINUTE:
        return f"{seconds:.0f} s"
    return f"{seconds / _MINUTE:.0f} min" if seconds < 2 * _HOUR else f"{seconds / _HOUR:.1f} h"


class Progress:
    """Print the current probe and the remaining time on stderr."""

    def __init__(self, out: Output) -> None:
        self._out = out
        self._ended = 0

    def starts(self, probe: Probe, number: int, total: int, left_s: float) -> None:
        """Print the start of a probe; show the remaining time once three probes have corrected the estimate."""
        remaining = f", about {duration(left_s)} left" if self._ended >= 3 and left_s > _LONG_S else ""  # noqa: PLR2004
        self._out.note(f"[{number}/{total}] {probe.title}{remaining}")

    def ended(self, result: Result) -> None:
        """Print the result of a probe."""
        measured = visible(result.finding.measured)  # it may quote the server
        verdict = result.finding.verdict.value
        taken = f" in {duration(result.seconds)}" if result.seconds >= 1 else ""
        if not result.traces:
            self._out.note(f"        {result.probe.title}: {verdict}, {measured}")
            return
        self._ended += 1
        self._out.note(f"        {verdict}{taken}: {measured}")


# Known causes of failing probes, as data with references.


class Cause(Questions):
    """One known cause, or several with the same symptom."""

    sign: str  # symptom
    known: str  # cause, and where it was seen
    fix: str  # what to try next


@cache
def causes() -> dict[str, Cause]:
    """Load all causes by key."""
    text = (files("halfbyte.probe") / "data" / "causes.yaml").read_text(encoding="utf-8")
    return TypeAdapter(dict[str, Cause]).validate_python(yaml.safe_load(text))
