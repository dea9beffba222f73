"""Sections on measurements: predictions against the source, evaluation, probes, and speed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from halfbyte.evidence.benchmark import Benchmark
from halfbyte.evidence.comparison import Comparison, Summary
from halfbyte.evidence.evaluation import Evaluation, TaskResult
from halfbyte.evidence.fields import at, items
from halfbyte.evidence.folder import Evidence
from halfbyte.evidence.probes import ProbeCoverage, ProbeResult, Probes, coverage
from halfbyte.publish.report.blocks import (
    NOT_MEASURED,
    Block,
    Figure,
    Fold,
    Level,
    Missing,
    Say,
    Section,
    Table,
    Text,
    command_for,
    formatted,
    missing,
)
from halfbyte.publish.report.charts import Axes, Interval, Line, bars, intervals, lines


def divergence(evidence: Evidence) -> Section:
    """Return the section on predictions."""
    comparison = evidence.get(Comparison)
    if comparison is None:
        return Section("divergence", "Predictions", [missing(evidence, Comparison, "KL divergence from the source")])
    number, length = comparison.rows
    rows_of_tokens = f"{number:,} rows of {length:,} tokens"
    about = f"This checkpoint against its source, {comparison.dtype} on {comparison.device}, {rows_of_tokens}"
    blocks: list[Block] = [Say(about)]
    positions = comparison.by_position
    if positions:
        names = [str(start) for start in positions.start]
        bins = zip(names, positions.kl, positions.tokens, strict=True)
        tooltips = [f"from token {start}: KL {kl:.4g} nat, {count:,} tokens" for start, kl, count in bins]
        axes = Axes("KL by position", "position in the text (first token)", "KL (nats)")
        drawn = bars(axes, names, positions.kl, tooltips)
        blocks.append(Figure("Mean KL by position of the predicted token in its text.", drawn))
    else:
        blocks.append(Missing("KL by position", "not in compare.json", command_for(Comparison)))
    rows = [
        _domain_row("all", comparison.total),
        *(_domain_row(name, domain) for name, domain in comparison.domains.items()),
    ]
    columns = ("domain", "tokens", "KL (nats)", "KL, 95% CI", "top-1 agreement", "perplexity ratio")
    blocks.append(Table("Predictions by domain", columns, rows, frozenset(columns[1:])))
    return Section("divergence", "Predictions", blocks)


def _domain_row(name: str, domain: Summary) -> list[str]:
    kl = domain.kl
    return [
        name,
        f"{domain.tokens:,}",
        formatted(kl.value, ".4g"),
        "too few documents" if kl.low is None or kl.high is None else f"{kl.low:.4g} to {kl.high:.4g}",
        formatted(domain.top1.value, ".4f"),
        formatted(domain.perplexity_ratio.value, ".4f"),
    ]


_LABEL_LEVELS: dict[str, Level] = {"REGRESSION": "bad", "ANOMALOUS": "bad"}


def evals(evidence: Evidence) -> Section:
    """Return the section on evaluation."""
    evaluation = evidence.get(Evaluation)
    if evaluation is None:
        return Section("evaluation", "Evaluation", [missing(evidence, Evaluation, "task scores")])
    tasks, limit = evaluation.tasks, evaluation.arguments.limit
    items = f", the first {limit} items of each task" if limit else ""
    blocks: list[Block] = [Say(f"Suite {evaluation.suite.name}{items}: {evaluation.label}")]
    blocks += _forest(tasks)
    columns = ("task", "verdict", "items", "score", "95% CI", "source", "difference", "difference, 95% CI")
    rows = [_task_row(task) for task in tasks]
    levels: list[Level] = [_LABEL_LEVELS.get(task.label, "") for task in tasks]
    blocks.append(Table("Scores of the primary metric", columns, rows, frozenset(columns[2:]), levels))
    for task in tasks:
        blocks += [Say(f"{task.task}: {note}", "note") for note in (*task.anomalies, *task.notes)]
    return Section("evaluation", "Evaluation", blocks)


def _forest(tasks: Sequence[TaskResult]) -> list[Block]:
    drawn: list[Interval] = []
    margins: set[float] = set()
    for task in tasks:
        pair = task.deciding(task.primary)
        if pair is not None:
            low, high = (100 * limit for limit in pair.interval)
            value = 100 * pair.difference
            tooltip = f"{task.task}: {value:+.1f} points, {low:+.1f} to {high:+.1f}"
            drawn.append(Interval(task.task, low, value, high, tooltip))
            margins.add(-100 * pair.verdict.margin)
    if not drawn:
        return [Missing("difference from the source", "the run had no baseline", command_for(Evaluation))]
    marks = [(0.0, "no difference"), *((margin, "margin") for margin in sorted(margins))]
    about = "Difference from the source in points, with its interval. Vertical lines: no difference, allowed margin."
    return [Figure(about, intervals("Difference from the source", "points relative to the source", drawn, marks))]


def _task_row(task: TaskResult) -> list[str]:
    score, pair = task.candidate.by_metric.get(task.primary), task.deciding(task.primary)
    row = [task.task, task.label]
    if score is None:
        row += [NOT_MEASURED] * 3
    else:
        low, high = score.interval
        row += [f"{score.items:,}", f"{100 * score.value:.1f}%", f"{100 * low:.1f} to {100 * high:.1f}%"]
    if pair is None:
        return [*row, NOT_MEASURED, NOT_MEASURED, NOT_MEASURED]
    low, high = pair.interval
    between = f"{100 * low:+.1f} to {100 * high:+.1f}"
    return [*row, f"{100 * pair.reference:.1f}%", f"{100 * pair.difference:+.1f}", between]


_TRACES = "probe.jsonl"
_EACH = 3  # traces per probe
_MOST_CHARACTERS = 1_000_000  # in all traces
_LONGEST = 2_000  # characters per request or answer
_LONGEST_LINE = 1 << 22
_MOST_NBYTES = 1 << 32  # of the trace file; a sparse file can claim any size
_VERDICT_LEVELS: dict[str, Level] = {"passed": "good", "failed": "bad", "broken": "bad", "skipped": "note"}


def probes(evidence: Evidence) -> Section:
    """Return the table and the traces."""
    report = evidence.get(Probes)
    if report is None:
        return Section("probes", "Probes", [missing(evidence, Probes, "serving behavior")])
    counts = ", ".join(f"{number} {verdict}" for verdict, number in report.counts.items() if number)
    rows = [[probe.title, probe.verdict, probe.measured, probe.threshold, probe.group] for probe in report.probes]
    levels: list[Level] = [_VERDICT_LEVELS[probe.verdict] for probe in report.probes]
    covered = coverage(report.probes)
    blocks: list[Block] = [
        Say(covered_words(covered), "note" if covered.over_budget or covered.unreachable else ""),
        Say(f"{len(rows)} probes of {report.endpoint.model}, profile {report.profile}: {counts}"),
        Table("Probes", ("probe", "verdict", "measured", "required", "group"), rows, levels=levels),
    ]
    wanted = {probe.name: _wanted_traces(probe) for probe in report.probes}
    traces = _read_traces(
        evidence.path(Probes).with_name(_TRACES), {name for names in wanted.values() for name in names}
    )
    left = _MOST_CHARACTERS
    for probe, level in zip(report.probes, levels, strict=True):
        inner: list[Block] = [Say(probe.reason)]
        if probe.cause:
            inner.append(Say(f"likely cause: {probe.cause}", "bad"))
        inner += [Say(excerpt.problem, "bad") for excerpt in probe.excerpts[:_EACH]]
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


def _wanted_traces(probe: ProbeResult) -> list[str]:
    """Return the traces to show, starting with those of the findings."""
    named = (excerpt.trace for excerpt in probe.excerpts)
    return [name for name in dict.fromkeys([*named, *probe.traces]) if name][:_EACH]


def _read_traces(path: Path, wanted: set[str]) -> dict[str, list[Text]]:
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
                    texts[name] = _trace_texts(name, record)
    except OSError:
        pass
    return texts


def _trace_texts(name: str, record: Any) -> list[Text]:
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


def speed(evidence: Evidence) -> Section:
    """Return the points of the sweep, and whether performance may be claimed."""
    bench = evidence.get(Benchmark)
    if bench is None:
        return Section("speed", "Speed", [missing(evidence, Benchmark, "throughput and latency")])
    drawn: dict[str, list[tuple[float, float, str]]] = {}
    rows: list[list[str]] = []
    for point in sorted(bench.points, key=lambda point: point.point.concurrency):
        node, user, label = point.tokens_per_second, point.tokens_per_second_per_user, point.label
        if node and user:
            shape = f"{point.arm}: {label.partition(', ')[2]}"
            tooltip = f"{point.arm}, {label}: {node:,.1f} tokens/s, {user:,.1f} tokens/s per user"
            drawn.setdefault(shape, []).append((user, node, tooltip))
        ttft, tpot = point.ttft or {}, point.tpot or {}
        rows.append([
            f"{point.arm}: {label}", formatted(node, ",.1f"), formatted(user, ",.1f"), _ms(ttft.get("p50")),
            _ms(ttft.get("p99")), _ms(tpot.get("p50")), f"{point.failed} of {point.requests}",
        ])  # fmt: skip
    blocks: list[Block] = []
    if bench.no_claim_because:
        blocks.append(Say(f"No performance claim: {bench.no_claim_because}.", "note"))
    blocks += [Say(line, "good") for line in bench.headlines]
    if drawn:
        axes = Axes("Throughput against interactivity", "tokens/s per user", "tokens/s of the node")
        about = "One line per server and shape, one point per concurrency. Up and right is better."
        blocks.append(Figure(about, lines(axes, [Line(name, points) for name, points in drawn.items()])))
    columns = ("point", "tokens/s", "tokens/s per user", "TTFT p50", "TTFT p99", "TPOT p50", "failed")
    blocks.append(Table("Points of the sweep", columns, rows, frozenset(columns[1:])))
    blocks += [Say(comparison.sentence) for comparison in bench.comparisons]
    return Section("speed", "Speed", blocks)


def _ms(seconds: float | None) -> str:
    return formatted(None if seconds is None else 1000 * seconds, ",.1f", " ms")
