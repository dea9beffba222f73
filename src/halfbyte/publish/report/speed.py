"""Speed section: throughput of the node against throughput per user."""

from __future__ import annotations

from halfbyte.evidence.benchmark import Benchmark
from halfbyte.evidence.folder import Evidence
from halfbyte.publish.report.blocks import Block, Figure, Say, Section, Table, formatted, missing
from halfbyte.publish.report.charts import Axes, Line, lines


def speed(evidence: Evidence) -> Section:
    """Return the points of the sweep, and whether performance may be claimed."""
    bench = evidence.get(Benchmark)
    if bench is None:
        return Section("speed", "Speed", [missing(evidence, Benchmark, "throughput and latency")])
    drawn: dict[str, list[tuple[float, float, str]]] = {}
    rows: list[list[str]] = []
    for point in sorted(bench.points, key=lambda point: point.point.concurrency):
        node, user, where = point.tokens_per_second, point.tokens_per_second_per_user, point.where
        if node and user:
            shape = f"{point.arm}: {where.partition(', ')[2]}"
            tooltip = f"{point.arm}, {where}: {node:,.1f} tokens/s, {user:,.1f} tokens/s per user"
            drawn.setdefault(shape, []).append((user, node, tooltip))
        ttft, tpot = point.ttft or {}, point.tpot or {}
        rows.append([
            f"{point.arm}: {where}", formatted(node, ",.1f"), formatted(user, ",.1f"), _ms(ttft.get("p50")),
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
