"""Build the report of a bench: the content of `bench.json`, the table, the sentences below it, and the plot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from halfbyte.bench.compare import compare, equal_tpot, headlines, not_compared, ratio_count
from halfbyte.bench.records import Block
from halfbyte.bench.roofline import decode_limit, prefill_limit
from halfbyte.bench.server import EMULATED, differences
from halfbyte.bench.summary import summarize
from halfbyte.errors import CheckpointError, UsageError
from halfbyte.evidence.benchmark import Benchmark, BenchPoint, BenchServer
from halfbyte.serve.checkpoint_facts import Served, served
from halfbyte.serve.gpus import Gpus, parse_gpus
from halfbyte.statistics.results import Design
from halfbyte.ui.console import Column, Level

COLUMNS = (
    Column("arm", "server"),
    Column("label", "point"),
    Column("requests_per_second", "req/s", number=True),
    Column("tokens_per_second", "tok/s", number=True),
    Column("per_user", "tok/s/user", number=True),
    Column("ttft", "TTFT p50/p90/p99 ms", number=True),
    Column("itl", "ITL", number=True),
    Column("tpot", "TPOT", number=True),
    Column("e2e", "E2E s", number=True),
    Column("prefill", "prefill tok/s", number=True),
    Column("errors", "errors", number=True),
    Column("goodput", "goodput req/s", number=True),
)
NO_BOOT = "startup time unknown (`halfbyte serve OUT --run --then bench` measures it)"
SAME_SERVER = "A and B are the same server (A/A test), so the ratio says nothing about another server"


def failed_points(bench: Benchmark) -> list[BenchPoint]:
    """Return the points with failed requests or without output."""
    return [point for point in bench.points if point.failed or point.tokens_per_second is None]


def rows(bench: Benchmark) -> list[dict[str, Any]]:
    """Return the rows of the table."""
    return [_row(point) for point in bench.points]


def sentences(bench: Benchmark) -> list[tuple[Level, str]]:
    """Return the sentences below the table: errors, then notes, then claims."""
    notes = [
        f"{name}: {server.no_claim_because}, so its speed supports no claim"
        for name, server in bench.servers.items()
        if server.no_claim_because
    ]
    notes += [f"{name}: {server.boot.sentence() if server.boot else NO_BOOT}" for name, server in bench.servers.items()]
    notes += [f"A and B differ in more than the checkpoint: {text}" for text in bench.differences]
    notes += [SAME_SERVER] if bench.same_server else []
    bad: list[str] = []
    for point in bench.points:
        where = f"{point.arm} at {point.label}"
        bad += [f"{where}: {count}x {error}" for error, count in point.errors.items()]
        if point.drift is not None:
            notes.append(f"{where}: throughput changed by {point.drift:+.0%} over the run")
        if point.doubt:
            notes.append(f"{where}: {point.doubt}")
        notes += _server_sentences(point)
    notes += [limit["sentence"] for limit in bench.roofline]
    notes += bench.not_compared
    notes += [comparison.sentence for comparison in (*bench.comparisons, *bench.equal_tpot)]
    if bench.comparisons and not bench.headlines:
        notes.append("no headline: no significant difference, or no claim is allowed")
    levels: list[tuple[Level, Sequence[str]]] = [("bad", bad), ("note", notes), ("good", bench.headlines)]
    return [(level, sentence) for level, texts in levels for sentence in texts]


def _same_server(servers: Mapping[str, BenchServer]) -> bool:
    """Return whether A and B are the same server: one address, or one process at two addresses."""
    a, b = servers.get("A"), servers.get("B")
    if a is None or b is None:
        return False
    return a.url == b.url or (a.started is not None and a.started == b.started)


def make_report(
    blocks: Sequence[Block],
    servers: Mapping[str, BenchServer],
    *,
    design: Design,
    slo: Mapping[str, float],
    gpus: str | None = None,
    emulated: bool = False,
) -> Benchmark:
    """Summarize and compare the blocks, compute the roofline, and return the contents of bench.json."""
    groups: dict[tuple[Any, str], list[Block]] = {}
    for block in blocks:
        groups.setdefault((block.point, block.arm), []).append(block)
    summaries = tuple(summarize(group, slo) for group in groups.values())
    # halfbyte's blocks record their hardware. Files of other tools do not.
    unknown = "" if gpus else "the hardware of these results is unknown; pass --gpus"
    reasons = [EMULATED] if emulated else [block.server.get("no_claim_because", unknown) for block in blocks]
    no_claim = next(filter(None, reasons), "")
    limits, missing = _limits(summaries, servers, gpus)
    comparisons = tuple(compare(blocks, summaries, no_claim, design))
    why = next(filter(None, [no_claim, *(summary.no_claim_because for summary in summaries)]), "")
    pace = tuple(equal_tpot(blocks, why)) if design == "abba" else ()
    return Benchmark(
        servers=servers,
        differences=tuple(differences(servers["A"], servers["B"])) if {"A", "B"} <= servers.keys() else (),
        same_server=_same_server(servers),
        design=design,
        no_claim_because=no_claim,
        slo=slo,
        points=summaries,
        comparisons=comparisons,
        not_compared=tuple(not_compared(summaries)),
        equal_tpot=pace,
        headlines=tuple(headlines(comparisons, ratio_count(summaries))),
        roofline=limits,
        roofline_missing=missing,
    )


def _limits(
    summaries: Sequence[BenchPoint], servers: Mapping[str, BenchServer], gpus: str | None
) -> tuple[tuple[Mapping[str, Any], ...], str]:
    """Return the roofline of each point, and the reason if it is missing."""
    if gpus is None:
        return (), "--gpus not specified"
    machine = parse_gpus(gpus)
    limits: list[Mapping[str, Any]] = []
    missing = ""
    for name, server in servers.items():
        try:
            checkpoint = served(Path(server.root))
        except (CheckpointError, UsageError) as error:
            missing = f"the checkpoint of {name} is not on this machine: {error.what}"
            continue
        cache = server.settings.get("cache_dtype", "auto")
        kv = "fp8" if "fp8" in cache or (cache == "auto" and "fp8" in (checkpoint.kv_dtype or "")) else "bf16"
        limits += [_limit(summary, checkpoint, machine, kv) for summary in summaries if summary.arm == name]
    return tuple(limits), missing


def _limit(summary: BenchPoint, checkpoint: Served, machine: Gpus, kv: str) -> dict[str, Any]:
    needs, how = checkpoint.needs, checkpoint.activations
    users, context = summary.point.concurrency, summary.point.context
    decode = decode_limit(needs, machine, users, context, activations=how, kv_dtype=kv)
    prefill = prefill_limit(needs, machine, users, summary.point.prompt, activations=how, kv_dtype=kv)
    pace = summary.tokens_per_second_per_user
    decoded = pace * summary.point.concurrency / decode.tokens_per_second if pace else None
    # With several users, the first token waits for other prompts, so TTFT gives no prefill rate.
    alone = summary.prefill_tokens_per_second if summary.point.concurrency == 1 else None
    read = alone / prefill.tokens_per_second if alone else None
    sentence = f"{summary.arm} at {summary.point}, {machine}:"
    sentence += f" decode limit {decode.tokens_per_second:,.0f} tok/s ({decode.bound_by})"
    sentence += f", {decoded:.1%} of it reached" if decoded is not None else ""
    sentence += f"; prefill limit {prefill.tokens_per_second:,.0f} tok/s ({prefill.bound_by})"
    sentence += f", {read:.1%} of it reached" if read is not None else ""
    return {
        "arm": summary.arm,
        "label": summary.label,
        "gpus": str(machine),
        "kv_dtype": kv,
        "decode": asdict(decode),
        "prefill": asdict(prefill),
        "decode_share": decoded,
        "prefill_share": read,
        "sentence": sentence,
    }


def _server_sentences(point: BenchPoint) -> list[str]:
    server = point.server
    parts: list[str] = []
    if server.prefix_hit_share is not None:
        parts.append(f"prefix cache hit rate {server.prefix_hit_share:.1%}")
    elif server.prefix_queries == 0:
        parts.append("prefix cache off")
    if server.draft_acceptance is not None:
        parts.append(f"{server.draft_acceptance:.1%} of draft tokens accepted")
    if server.kv_use_peak is not None:
        parts.append(f"peak KV cache usage {server.kv_use_peak:.0%}")
    if server.preemptions:
        parts.append(f"{server.preemptions:.0f} preemptions")
    if point.gpus and point.gpus.get("watts"):
        gpus = point.gpus
        parts.append(f"{gpus['gpus']} GPUs drew {gpus['watts']:,.0f} W at {gpus['sm_mhz'] or 0:,.0f} MHz")
    if not parts and server.generated_tokens is None:
        parts.append("no /metrics, so the cache statistics are unknown")
    return [f"{point.arm} at {point.label}: {'; '.join(parts)}"] if parts else []


def _row(summary: BenchPoint) -> dict[str, Any]:
    return {
        "arm": summary.arm,
        "label": summary.label,
        "requests_per_second": summary.requests_per_second,
        "tokens_per_second": summary.tokens_per_second,
        "per_user": summary.tokens_per_second_per_user,
        "ttft": _three(summary.ttft, 1e3),
        "itl": _three(summary.itl, 1e3),
        "tpot": _three(summary.tpot, 1e3),
        "e2e": _three(summary.e2e, 1),
        "prefill": summary.prefill_tokens_per_second,
        "errors": f"{summary.failed}/{summary.requests}",
        "goodput": summary.goodput_per_second,
    }


def _three(spread: Mapping[str, float] | None, scale: float) -> str | None:
    return None if spread is None else "/".join(f"{spread[f'p{at}'] * scale:.3g}" for at in (50, 90, 99))


# Plot throughput against tokens per second per user as an SVG. Up and right is better.

WIDTH, HEIGHT = 760, 420
LEFT, RIGHT, TOP, BOTTOM = 72, 520, 40, 360
COLORS = ("#1457c8", "#c8531e", "#1f8a4c", "#8a1f7c", "#7a6a00", "#008a93", "#b0183a", "#555555")
TICKS = 5

Spot = tuple[float, float, str]


def plot(summaries: Sequence[BenchPoint], note: str) -> str | None:
    """Return the SVG, with a line per server and shape and a dot per concurrency, or None without data."""
    lines: dict[str, list[Spot]] = {}
    for row in sorted(summaries, key=lambda summary: summary.point.concurrency):
        if row.tokens_per_second and row.tokens_per_second_per_user:
            spot = (row.tokens_per_second_per_user, row.tokens_per_second, str(row.point.concurrency))
            lines.setdefault(f"{row.arm}: {row.point.shape}", []).append(spot)
    if not lines:
        return None
    return _svg(lines, note)


def _svg(lines: Mapping[str, Sequence[Spot]], note: str) -> str:
    spots = [spot for series in lines.values() for spot in series]
    widest, highest = 1.1 * max(x for x, _, _ in spots), 1.1 * max(y for _, y, _ in spots)

    def across(value: float) -> float:
        return LEFT + (RIGHT - LEFT) * value / widest

    def up(value: float) -> float:
        return BOTTOM - (BOTTOM - TOP) * value / highest

    drawn = [_text(LEFT, 16, "output tokens per second, total against per user", "start", bold=True)]
    if note:
        drawn.append(_text(LEFT, 32, note, "start"))
    for tick in range(TICKS):
        x, y = (limit * tick / (TICKS - 1) for limit in (widest, highest))
        drawn.append(f'<path d="M{LEFT} {up(y):.1f}H{RIGHT}" stroke="#ddd"/>')
        drawn.append(_text(LEFT - 6, up(y) + 4, f"{y:,.3g}", "end"))
        drawn.append(_text(across(x), BOTTOM + 18, f"{x:,.3g}", "middle"))
    drawn.append(_text((LEFT + RIGHT) / 2, BOTTOM + 38, "tokens per second per user", "middle"))
    for at, (name, series) in enumerate(lines.items()):
        color = COLORS[at % len(COLORS)]
        path = " ".join(f"{across(x):.1f},{up(y):.1f}" for x, y, _ in series)
        drawn.append(f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="2"/>')
        for x, y, users in series:
            drawn.append(f'<circle cx="{across(x):.1f}" cy="{up(y):.1f}" r="3.5" fill="{color}"/>')
            drawn.append(_text(across(x) + 6, up(y) - 6, users, "start"))
        y = TOP + 12 + 18 * at
        drawn.append(f'<path d="M{RIGHT + 20} {y - 4}h30" stroke="{color}" stroke-width="2"/>')
        drawn.append(_text(RIGHT + 56, y, name, "start"))
    size = f'width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}"'
    ground = '<rect width="100%" height="100%" fill="#fff"/>'
    body = "\n".join(drawn)
    font = 'font-family="sans-serif" font-size="12"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} {font}>\n{ground}\n{body}\n</svg>\n'


def _text(x: float, y: float, text: str, anchor: str, *, bold: bool = False) -> str:
    weight = ' font-weight="bold"' if bold else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{weight}>{escape(text)}</text>'
