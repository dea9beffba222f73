"""The table that a model card shows: probe, result, measured, threshold, evidence; and below it what went wrong."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from halfbyte.terminal.console import SYMBOLS, Column, Level, Output
from halfbyte.validate.probe.causes import causes
from halfbyte.validate.probe.kinds import Shown, Verdict
from halfbyte.validate.probe.marks import MOST_SHOWN, marked, visible
from halfbyte.validate.probe.report import Report, Result

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
            "title": one.probe.title,
            "result": f"{SYMBOLS[_level(one)]} {one.finding.verdict.value}" + ("" if one.probe.gate else " (no gate)"),
            "measured": _short(visible(one.finding.measured)),
            "threshold": one.finding.threshold,
            "evidence": f"{len(one.traces):,} requests" if one.traces else "",
        }
        for one in results
    ]


def _level(result: Result) -> Level:
    level = _LEVELS[result.finding.verdict]
    return "note" if level == "bad" and not result.probe.gate else level


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST_CELL else text[: _LONGEST_CELL - 1] + "…"


def show(out: Output, report: Report) -> None:
    """Print the table, then every failure with the wrong place marked and what is known to cause it."""
    if out.as_json:
        out.text("", _printable(report.as_dict()))
        return
    out.table(rows(report.results), COLUMNS)
    for one in report.results:
        if one.finding.verdict in {Verdict.FAILED, Verdict.BROKEN}:
            out.verdicts([(_level(one), _explained(one))])
    out.verdicts([("good" if report.accepted else "bad", report.summary())])


def _printable(value: Any) -> Any:
    """Spell out halves of surrogate pairs, which no stream of UTF-8 takes."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        return {key: _printable(inner) for key, inner in cast("dict[str, Any]", value).items()}
    return [_printable(inner) for inner in cast("list[Any]", value)] if isinstance(value, list) else value


def _explained(result: Result) -> str:
    finding = result.finding
    lines = [f"{result.probe.name}: {visible(finding.measured)}", f"why it is asked: {result.probe.reason}"]
    lines += [_line(one) for one in finding.shown[:MOST_SHOWN]]
    if len(finding.shown) > MOST_SHOWN:
        lines.append(f"and {len(finding.shown) - MOST_SHOWN:,} more in probe.json")
    known = causes().get(finding.cause or "")
    if known:
        lines += [f"known cause: {known.known}", f"try: {known.fix}"]
    return "\n".join(lines)


def _line(shown: Shown) -> str:
    row = f"  (row {shown.trace})" if shown.trace else ""
    return f"{visible(shown.what)}{row}\n    {marked(shown)}"


def markdown(report: Report) -> str:
    """Return the table for a model card."""
    lines = ["| probe | result | measured | threshold |", "| --- | --- | --- | --- |"]
    for one in report.results:
        cells = (one.probe.title, one.finding.verdict.value, one.finding.measured, one.finding.threshold)
        lines.append("| " + " | ".join(visible(cell.replace("\n", " ")).replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"
