"""Every probe with its questions and answers: bounded, and shown as the text of a stranger that it is."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from halfbyte.publish.evidence import Evidence
from halfbyte.publish.report.blocks import Block, Fold, Level, Say, Section, Table, Text, missing
from halfbyte.validate.probe_coverage import Coverage, coverage

_TRACES = "probe.jsonl"
_EACH = 3  # traces of a probe
_MOST_CHARACTERS = 1_000_000  # of all traces together
_LONGEST = 2_000  # characters of a question or an answer
_LONGEST_LINE = 1 << 22
_MOST_NBYTES = 1 << 32  # of a trace; a file without blocks on the disk can say that it has any size
_LEVELS: dict[str, Level] = {"passed": "good", "failed": "bad", "broken": "bad", "skipped": "note"}


def probes(evidence: Evidence) -> Section:
    """Return the table and the traces."""
    found = evidence.get("probe")
    if found is None:
        return Section("probes", "Probes", [missing(evidence, "probe", "the behaviour of the served model")])
    results: Sequence[Mapping[str, Any]] = found["probes"]
    counts = ", ".join(f"{number} {verdict}" for verdict, number in found["counts"].items() if number)
    rows = [
        [str(one["title"]), str(one["verdict"]), str(one["measured"]), str(one["threshold"]), str(one["group"])]
        for one in results
    ]
    levels: list[Level] = [_LEVELS.get(str(one["verdict"]), "note") for one in results]
    endpoint = found["endpoint"]
    covered = coverage(results)
    blocks: list[Block] = [
        Say(covered_words(covered), "note" if covered.over_budget or covered.unreachable else ""),
        Say(f"{len(rows)} probes of {endpoint['model']}, profile {found['profile']}: {counts}"),
        Table("Probes", ("probe", "verdict", "measured", "needed", "group"), rows, levels=levels),
    ]
    wanted = {str(one["name"]): _wanted(one) for one in results}
    traces = _read(evidence.path("probe").with_name(_TRACES), {name for names in wanted.values() for name in names})
    left = _MOST_CHARACTERS
    for one, level in zip(results, levels, strict=True):
        inner: list[Block] = [Say(f"{one['reason']}")]
        if one.get("cause"):
            inner.append(Say(f"likely cause: {one['cause']}", "bad"))
        inner += [Say(f"{shown['what']}", "bad") for shown in one["shown"][:_EACH]]
        for name in wanted[str(one["name"])]:
            for text in traces.get(name, []):
                if left > 0:
                    left -= len(text.text)
                    inner.append(text)
        blocks.append(Fold(f"{one['title']}: {one['verdict']}", inner, level))
    if left <= 0:
        blocks.append(
            Say(f"More traces are in {_TRACES}; this page holds {_MOST_CHARACTERS:,} characters of them.", "note")
        )
    return Section("probes", "Probes", blocks)


def covered_words(covered: Coverage) -> str:
    """Return how many probes ran, and the names of those that only lacked time or a server."""
    left = [str(row.get("title")) for row in (*covered.over_budget, *covered.unreachable)]
    return f"{covered.sentence()}." + (f" Not asked: {'; '.join(left)}." if left else "")


def _wanted(one: Mapping[str, Any]) -> list[str]:
    """Return the traces to show: those that the finding names come first."""
    named = [str(shown.get("trace") or "") for shown in one["shown"]]
    return [name for name in dict.fromkeys([*named, *map(str, one["traces"])]) if name][:_EACH]


def _read(path: Path, wanted: set[str]) -> dict[str, list[Text]]:
    """Return questions and answers of some requests; one line is in memory at a time."""
    found: dict[str, list[Text]] = {}
    try:
        if not path.is_file() or path.stat().st_size > _MOST_NBYTES:
            return found
        with path.open(encoding="utf-8", errors="replace") as file:
            while line := file.readline(_LONGEST_LINE):
                try:
                    record: Any = json.loads(line)
                except (ValueError, RecursionError):
                    continue
                told = cast("dict[str, Any]", record) if isinstance(record, dict) else {}
                if str(told.get("id")) in wanted:
                    found[str(told["id"])] = _texts(told)
    except OSError:
        pass
    return found


def _texts(record: Mapping[str, Any]) -> list[Text]:
    request, answer = record.get("request"), record.get("answer")
    asked: Any = request
    if isinstance(request, dict):
        sent = cast("dict[str, Any]", request)
        asked = sent.get("messages") or sent.get("prompt")
    if isinstance(asked, list) and asked:
        last = cast("list[Any]", asked)[-1]
        asked = cast("dict[str, Any]", last).get("content") if isinstance(last, dict) else last
    found = [Text(f"asked ({record['id']})", _short(asked))]
    if isinstance(answer, dict):
        said = cast("dict[str, Any]", answer)
        for key in ("reasoning", "content", "tool_calls", "text", "error"):
            if said.get(key):
                found.append(Text(key, _short(said[key])))
    elif answer is not None:
        found.append(Text("answer", _short(answer)))
    if record.get("error"):
        found.append(Text("error", _short(record["error"])))
    return found


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]} … {len(text) - _LONGEST:,} more characters"
