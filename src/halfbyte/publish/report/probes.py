"""Probes section: each probe with a bounded number of requests and answers, shown as untrusted text."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from halfbyte.probe.coverage import Coverage, coverage
from halfbyte.publish.evidence import Evidence
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
    report = evidence.get("probe")
    if report is None:
        return Section("probes", "Probes", [missing(evidence, "probe", "serving behavior")])
    results: Sequence[Mapping[str, Any]] = report["probes"]
    counts = ", ".join(f"{number} {verdict}" for verdict, number in report["counts"].items() if number)
    rows = [
        [
            str(probe["title"]),
            str(probe["verdict"]),
            str(probe["measured"]),
            str(probe["threshold"]),
            str(probe["group"]),
        ]
        for probe in results
    ]
    levels: list[Level] = [_LEVELS.get(str(probe["verdict"]), "note") for probe in results]
    endpoint = report["endpoint"]
    covered = coverage(results)
    blocks: list[Block] = [
        Say(covered_words(covered), "note" if covered.over_budget or covered.unreachable else ""),
        Say(f"{len(rows)} probes of {endpoint['model']}, profile {report['profile']}: {counts}"),
        Table("Probes", ("probe", "verdict", "measured", "required", "group"), rows, levels=levels),
    ]
    wanted = {str(probe["name"]): _wanted(probe) for probe in results}
    traces = _read(evidence.path("probe").with_name(_TRACES), {name for names in wanted.values() for name in names})
    left = _MOST_CHARACTERS
    for probe, level in zip(results, levels, strict=True):
        inner: list[Block] = [Say(f"{probe['reason']}")]
        if probe.get("cause"):
            inner.append(Say(f"likely cause: {probe['cause']}", "bad"))
        inner += [Say(f"{shown['what']}", "bad") for shown in probe["shown"][:_EACH]]
        for name in wanted[str(probe["name"])]:
            for text in traces.get(name, []):
                if left > 0:
                    left -= len(text.text)
                    inner.append(text)
        blocks.append(Fold(f"{probe['title']}: {probe['verdict']}", inner, level))
    if left <= 0:
        blocks.append(
            Say(f"Traces are limited to {_MOST_CHARACTERS:,} characters; {_TRACES} contains all of them.", "note")
        )
    return Section("probes", "Probes", blocks)


def covered_words(covered: Coverage) -> str:
    """Return how many probes ran, by group, and the names of those omitted for time or an unresponsive server."""
    omitted = [str(row.get("title")) for row in (*covered.over_budget, *covered.unreachable)]
    groups = f" By group: {covered.by_group()}." if covered.by_group() else ""
    return f"{covered.sentence()}.{groups}" + (f" Not run: {'; '.join(omitted)}." if omitted else "")


def _wanted(probe: Mapping[str, Any]) -> list[str]:
    """Return the traces to show, starting with those of the findings."""
    named = [str(shown.get("trace") or "") for shown in probe["shown"]]
    return [name for name in dict.fromkeys([*named, *map(str, probe["traces"])]) if name][:_EACH]


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
                trace = cast("dict[str, Any]", record) if isinstance(record, dict) else {}
                if str(trace.get("id")) in wanted:
                    texts[str(trace["id"])] = _texts(trace)
    except OSError:
        pass
    return texts


def _texts(record: Mapping[str, Any]) -> list[Text]:
    request, answer = record.get("request"), record.get("answer")
    prompt: Any = request
    if isinstance(request, dict):
        body = cast("dict[str, Any]", request)
        prompt = body.get("messages") or body.get("prompt")
    if isinstance(prompt, list) and prompt:
        last = cast("list[Any]", prompt)[-1]
        prompt = cast("dict[str, Any]", last).get("content") if isinstance(last, dict) else last
    texts = [Text(f"request ({record['id']})", _short(prompt))]
    if isinstance(answer, dict):
        fields = cast("dict[str, Any]", answer)
        for key in ("reasoning", "content", "tool_calls", "text", "error"):
            if fields.get(key):
                texts.append(Text(key, _short(fields[key])))
    elif answer is not None:
        texts.append(Text("answer", _short(answer)))
    if record.get("error"):
        texts.append(Text("error", _short(record["error"])))
    return texts


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]} … {len(text) - _LONGEST:,} more characters"
