"""Result table as on a model card, and details of the failures below it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from halfbyte.probe.causes import causes
from halfbyte.probe.kinds import Shown, Verdict
from halfbyte.probe.marks import MOST_SHOWN, marked, visible
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
    lines += [_line(shown) for shown in finding.shown[:MOST_SHOWN]]
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
    for result in report.results:
        cells = (result.probe.title, result.finding.verdict.value, result.finding.measured, result.finding.threshold)
        lines.append("| " + " | ".join(visible(cell.replace("\n", " ")).replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"
