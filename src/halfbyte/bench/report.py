"""Build the report of a bench: the content of `bench.json`, the table, the sentences below it, and the plot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from halfbyte.bench.compare import Comparison, EqualTpot, compare, equal_tpot, headlines, not_compared
from halfbyte.bench.records import Block, Point
from halfbyte.bench.roofline import decode_limit, prefill_limit
from halfbyte.bench.server import EMULATED, Server, differences
from halfbyte.bench.summary import Summary, summarize
from halfbyte.errors import CheckpointError, UsageError
from halfbyte.evidence.benchmark import Benchmark
from halfbyte.serve.checkpoint_facts import Served, served
from halfbyte.serve.gpus import Gpus, parse_gpus
from halfbyte.statistics.throughput import Design
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


@dataclass(frozen=True, slots=True)
class Report:
    """The servers, measurements, comparisons and limits of a bench."""

    servers: Mapping[str, Server]
    summaries: tuple[Summary, ...]
    comparisons: tuple[Comparison, ...]
    equal_tpot: tuple[EqualTpot, ...]
    design: Design
    no_claim_because: str
    limits: tuple[Mapping[str, Any], ...]
    slo: Mapping[str, float]
    roofline_missing: str

    @property
    def failed(self) -> list[Summary]:
        """The summaries with failed requests or without output."""
        return [summary for summary in self.summaries if summary.failed or summary.tokens_per_second is None]

    def record(self, measured: Mapping[str, Any] | None = None) -> Benchmark:
        """Return the contents of bench.json; `measured` has the files it was measured on."""
        results = {
            "servers": {name: server.as_dict() for name, server in self.servers.items()},
            "differences": self._differences(),
            "same_server": self._same_server,
            "design": self.design,
            "no_claim_because": self.no_claim_because,
            "slo": dict(self.slo),
            "points": [{**summary.as_dict(), "label": str(summary.point)} for summary in self.summaries],
            "comparisons": [comparison.as_dict() for comparison in self.comparisons],
            "not_compared": not_compared(self.summaries),
            "equal_tpot": [comparison.as_dict() for comparison in self.equal_tpot],
            "headlines": headlines(self.comparisons),
            "roofline": [dict(limit) for limit in self.limits],
            "roofline_missing": self.roofline_missing,
        }
        return Benchmark.build({**results, **(measured or {})})

    def rows(self) -> list[dict[str, Any]]:
        """Return the rows of the table."""
        return [_row(summary) for summary in self.summaries]

    def sentences(self) -> list[tuple[Level, str]]:
        """Return the sentences below the table: errors, then notes, then claims."""
        notes = [
            f"{name}: {server.no_claim_because}, so its speed supports no claim"
            for name, server in self.servers.items()
            if server.no_claim_because
        ]
        notes += [
            f"{name}: {server.boot.sentence() if server.boot else NO_BOOT}" for name, server in self.servers.items()
        ]
        notes += [f"A and B differ in more than the checkpoint: {text}" for text in self._differences()]
        notes += [SAME_SERVER] if self._same_server else []
        bad: list[str] = []
        for summary in self.summaries:
            bad += [f"{summary.arm} at {summary.point}: {count}x {error}" for error, count in summary.errors.items()]
            if summary.drift is not None:
                notes.append(
                    f"{summary.arm} at {summary.point}: throughput changed by {summary.drift:+.0%} over the run"
                )
            if summary.doubt:
                notes.append(f"{summary.arm} at {summary.point}: {summary.doubt}")
            notes += _server_sentences(summary)
        notes += [limit["sentence"] for limit in self.limits]
        notes += not_compared(self.summaries)
        notes += [comparison.sentence() for comparison in (*self.comparisons, *self.equal_tpot)]
        claims = headlines(self.comparisons)
        if self.comparisons and not claims:
            notes.append("no headline: no significant difference, or no claim is allowed")
        levels: list[tuple[Level, list[str]]] = [("bad", bad), ("note", notes), ("good", claims)]
        return [(level, sentence) for level, sentences in levels for sentence in sentences]

    @property
    def _same_server(self) -> bool:
        """Whether A and B are the same server: one address, or one process at two addresses."""
        a, b = self.servers.get("A"), self.servers.get("B")
        if a is None or b is None:
            return False
        return a.url == b.url or (a.started is not None and a.started == b.started)

    def _differences(self) -> list[str]:
        return differences(self.servers["A"], self.servers["B"]) if {"A", "B"} <= self.servers.keys() else []


def make_report(
    blocks: Sequence[Block],
    servers: Mapping[str, Server],
    *,
    design: Design,
    slo: Mapping[str, float],
    gpus: str | None = None,
    emulated: bool = False,
) -> Report:
    """Summarize and compare the blocks, and compute the roofline."""
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
    return Report(servers, summaries, comparisons, pace, design, no_claim, limits, slo, missing)


def _limits(
    summaries: Sequence[Summary], servers: Mapping[str, Server], gpus: str | None
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


def _limit(summary: Summary, checkpoint: Served, machine: Gpus, kv: str) -> dict[str, Any]:
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
        "label": str(summary.point),
        "gpus": str(machine),
        "kv_dtype": kv,
        "decode": decode.as_dict(),
        "prefill": prefill.as_dict(),
        "decode_share": decoded,
        "prefill_share": read,
        "sentence": sentence,
    }


def _server_sentences(summary: Summary) -> list[str]:
    server = summary.server
    parts: list[str] = []
    if server.get("prefix_hit_share") is not None:
        parts.append(f"prefix cache hit rate {server['prefix_hit_share']:.1%}")
    elif server.get("prefix_queries") == 0:
        parts.append("prefix cache off")
    if server.get("draft_acceptance") is not None:
        parts.append(f"{server['draft_acceptance']:.1%} of draft tokens accepted")
    if server.get("kv_use_peak") is not None:
        parts.append(f"peak KV cache usage {server['kv_use_peak']:.0%}")
    if server.get("preemptions"):
        parts.append(f"{server['preemptions']:.0f} preemptions")
    if summary.gpus and summary.gpus.get("watts"):
        parts.append(
            f"{summary.gpus['gpus']} GPUs drew {summary.gpus['watts']:,.0f} W at {summary.gpus['sm_mhz'] or 0:,.0f} MHz"
        )
    if not parts and server.get("generated_tokens") is None:
        parts.append("no /metrics, so the cache statistics are unknown")
    return [f"{summary.arm} at {summary.point}: {'; '.join(parts)}"] if parts else []


def _row(summary: Summary) -> dict[str, Any]:
    return {
        "arm": summary.arm,
        "label": str(summary.point),
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


def plot(summaries: Sequence[Summary], note: str) -> str | None:
    """Return the SVG, with a line per server and shape and a dot per concurrency, or None without data."""
    lines: dict[str, list[Spot]] = {}
    for row in sorted(summaries, key=lambda summary: summary.point.concurrency):
        if row.tokens_per_second and row.tokens_per_second_per_user:
            spot = (row.tokens_per_second_per_user, row.tokens_per_second, str(row.point.concurrency))
            lines.setdefault(f"{row.arm}: {_shape(row.point)}", []).append(spot)
    if not lines:
        return None
    return _svg(lines, note)


def _shape(point: Point) -> str:
    return str(point).partition(", ")[2]


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
