"""Throughput of the node against what one user sees."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from halfbyte.publish.evidence import Evidence
from halfbyte.publish.report.blocks import Block, Figure, Say, Section, Table, missing, told
from halfbyte.publish.report.charts import Axes, Line, lines


def speed(evidence: Evidence) -> Section:
    """Return the points of the sweep, and what may be claimed."""
    found = evidence.get("bench")
    if found is None:
        return Section("speed", "Speed", [missing(evidence, "bench", "throughput and latency")])
    drawn: dict[str, list[tuple[float, float, str]]] = {}
    rows: list[list[str]] = []
    for point in sorted(found["points"], key=lambda one: int(one["point"]["concurrency"])):
        node, user = point.get("tokens_per_second"), point.get("tokens_per_second_per_user")
        where = str(point["where"])
        if node and user:
            shape = f"{point['arm']}: {where.partition(', ')[2]}"
            said = f"{point['arm']}, {where}: {float(node):,.1f} tokens a second, {float(user):,.1f} for one user"
            drawn.setdefault(shape, []).append((float(user), float(node), said))
        ttft: Mapping[str, Any] = point.get("ttft") or {}
        tpot: Mapping[str, Any] = point.get("tpot") or {}
        rows.append([
            f"{point['arm']}: {where}", told(node, ",.1f"), told(user, ",.1f"), _ms(ttft.get("p50")),
            _ms(ttft.get("p99")), _ms(tpot.get("p50")), f"{point['failed']} of {point['requests']}",
        ])  # fmt: skip
    blocks: list[Block] = []
    if found.get("no_claim_because"):
        blocks.append(Say(f"No claim of speed follows: {found['no_claim_because']}.", "note"))
    blocks += [Say(str(line), "good") for line in found["headlines"]]
    if drawn:
        axes = Axes("Throughput against interactivity", "tokens a second for one user", "tokens a second of the node")
        about = "A line for each server and shape, a point for each concurrency. Right and up is better."
        blocks.append(Figure(about, lines(axes, [Line(name, points) for name, points in drawn.items()])))
    columns = ("point", "tokens/s", "tokens/s/user", "TTFT p50", "TTFT p99", "TPOT p50", "failed")
    blocks.append(Table("Points of the sweep", columns, rows, frozenset(columns[1:])))
    blocks += [Say(str(one["sentence"])) for one in found["comparisons"]]
    return Section("speed", "Speed", blocks)


def _ms(seconds: float | None) -> str:
    return told(None if seconds is None else 1000 * float(seconds), ",.1f", " ms")
