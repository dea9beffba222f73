"""Probes section: each probe with a bounded number of requests and answers, shown as untrusted text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from halfbyte.evidence.fields import at, items
from halfbyte.evidence.folder import Evidence
from halfbyte.evidence.probes import ProbeCoverage, ProbeResult, Probes, coverage
from halfbyte.publish.report.blocks import Block, Fold, Level, Say, Section, Table, Text, missing

_TRACES = "probe.jsonl"
_EACH = 3  # traces per probe
_MOST_CHARACTERS = 1_000_000  # in all traces
_LONGEST = 2_000  # characters per request or answer
_LONGEST_LINE = 1 << 22
_MOST_NBYTES = 1 << 32  # of the trace file; a sparse file can claim any size
_LEVELS: dict[str, Level] = {"passed": "good", "failed": "bad", "broken": "bad", "skipped": "note"}


def probes(evidence: Evidence) -> Section:
    """Return the table and the traces."""
    report = evidence.get(Probes)
    if report is None:
        return Section("probes", "Probes", [missing(evidence, Probes, "serving behavior")])
    counts = ", ".join(f"{number} {verdict}" for verdict, number in report.counts.items() if number)
    rows = [[probe.title, probe.verdict, probe.measured, probe.threshold, probe.group] for probe in report.probes]
    levels: list[Level] = [_LEVELS[probe.verdict] for probe in report.probes]
    covered = coverage(report.probes)
    blocks: list[Block] = [
        Say(covered_words(covered), "note" if covered.over_budget or covered.unreachable else ""),
        Say(f"{len(rows)} probes of {report.endpoint.model}, profile {report.profile}: {counts}"),
        Table("Probes", ("probe", "verdict", "measured", "required", "group"), rows, levels=levels),
    ]
    wanted = {probe.name: _wanted(probe) for probe in report.probes}
    traces = _read(evidence.path(Probes).with_name(_TRACES), {name for names in wanted.values() for name in names})
    left = _MOST_CHARACTERS
    for probe, level in zip(report.probes, levels, strict=True):
        inner: list[Block] = [Say(probe.reason)]
        if probe.cause:
            inner.append(Say(f"likely cause: {probe.cause}", "bad"))
        inner += [Say(shown.what, "bad") for shown in probe.shown[:_EACH]]
        for name in wanted[probe.name]:
            for text in traces.get(name, []):
                if left > 0:
                    left -= len(text.text)
                    inner.append(text)
        blocks.append(Fold(f"{probe.title}: {probe.verdict}", inner, level))
    if left <= 0:
        blocks.append(
            Say(f"Traces are limited to {_MOST_CHARACTERS:,} characters; {_TRACES} contains all of them.", "note")
        )
    return Section("probes", "Probes", blocks)


def covered_words(covered: ProbeCoverage) -> str:
    """Return how many probes ran, by group, and the names of those omitted for time or an unresponsive server."""
    omitted = [row.title for row in (*covered.over_budget, *covered.unreachable)]
    groups = f" By group: {covered.by_group()}." if covered.by_group() else ""
    return f"{covered.sentence()}.{groups}" + (f" Not run: {'; '.join(omitted)}." if omitted else "")


def _wanted(probe: ProbeResult) -> list[str]:
    """Return the traces to show, starting with those of the findings."""
    named = (shown.trace for shown in probe.shown)
    return [name for name in dict.fromkeys([*named, *probe.traces]) if name][:_EACH]


def _read(path: Path, wanted: set[str]) -> dict[str, list[Text]]:
    """Return the requests and answers of the given traces, reading one line at a time."""
    texts: dict[str, list[Text]] = {}
    try:
        if not path.is_file() or path.stat().st_size > _MOST_NBYTES:
            return texts
        with path.open(encoding="utf-8", errors="replace") as file:
            while line := file.readline(_LONGEST_LINE):
                try:
                    record: Any = json.loads(line)
                except (ValueError, RecursionError):
                    continue
                name = str(at(record, "id"))
                if name in wanted:
                    texts[name] = _texts(name, record)
    except OSError:
        pass
    return texts


def _texts(name: str, record: Any) -> list[Text]:
    """Return the last prompt and the parts of the answer of a trace, which is untrusted."""
    request, answer = at(record, "request"), at(record, "answer")
    prompt: Any = at(request, "messages") or at(request, "prompt") if isinstance(request, dict) else request
    if items(prompt):
        last = items(prompt)[-1]
        prompt = at(last, "content") if isinstance(last, dict) else last
    texts = [Text(f"request ({name})", _short(prompt))]
    if isinstance(answer, dict):
        keys = ("reasoning", "content", "tool_calls", "text", "error")
        texts += [Text(key, _short(part)) for key in keys if (part := at(answer, key))]
    elif answer is not None:
        texts.append(Text("answer", _short(answer)))
    if error := at(record, "error"):
        texts.append(Text("error", _short(error)))
    return texts


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]} … {len(text) - _LONGEST:,} more characters"
