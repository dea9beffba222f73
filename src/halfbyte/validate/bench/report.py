"""All of a bench in one value: what `bench.json` holds, what the screen shows, and the sentences that may be quoted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from halfbyte.errors import CheckpointError, UsageError
from halfbyte.serve.gpus import Gpus, parse_gpus
from halfbyte.serve.served import Served, served
from halfbyte.terminal.console import Column, Level
from halfbyte.validate.bench.compare import Comparison, compare, headlines, not_compared
from halfbyte.validate.bench.equal_pace import EqualPace, equal_pace
from halfbyte.validate.bench.machine import EMULATED, Server, differences
from halfbyte.validate.bench.records import Block
from halfbyte.validate.bench.roofline import decode_limit, prefill_limit
from halfbyte.validate.bench.summary import Summary, summarize
from halfbyte.validate.statistics.throughput import Design

COLUMNS = (
    Column("arm", "server"),
    Column("where", "point"),
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
NO_BOOT = "how long it took to start is not known (`halfbyte serve OUT --run --then bench` knows)"
SAME_SERVER = "A and B are one server: this compares it with itself (A/A), and a ratio says nothing about another one"


@dataclass(frozen=True, slots=True)
class Report:
    """What was measured, of what, and what follows."""

    servers: Mapping[str, Server]
    summaries: tuple[Summary, ...]
    comparisons: tuple[Comparison, ...]
    same_pace: tuple[EqualPace, ...]
    design: Design
    no_claim_because: str
    limits: tuple[Mapping[str, Any], ...]
    slo: Mapping[str, float]
    roofline_missing: str

    @property
    def failed(self) -> list[Summary]:
        """Where requests failed, or nothing came."""
        return [one for one in self.summaries if one.failed or one.tokens_per_second is None]

    def as_dict(self) -> dict[str, Any]:
        """Return it for JSON."""
        return {
            "servers": {name: server.as_dict() for name, server in self.servers.items()},
            "differences": self._differences(),
            "same_server": self._same_server,
            "design": self.design,
            "no_claim_because": self.no_claim_because,
            "slo": dict(self.slo),
            "points": [{**one.as_dict(), "where": str(one.point)} for one in self.summaries],
            "comparisons": [one.as_dict() for one in self.comparisons],
            "not_compared": not_compared(self.summaries),
            "same_pace": [one.as_dict() for one in self.same_pace],
            "headlines": headlines(self.comparisons),
            "roofline": [dict(limit) for limit in self.limits],
            "roofline_missing": self.roofline_missing,
        }

    def rows(self) -> list[dict[str, Any]]:
        """Return the table's rows."""
        return [_row(one) for one in self.summaries]

    def sentences(self) -> list[tuple[Level, str]]:
        """Return what must be said beside the table: labels first, then differences, then what is claimed."""
        notes = [
            f"{name}: {server.no_claim_because}, so its speed supports no claim"
            for name, server in self.servers.items()
            if server.no_claim_because
        ]
        notes += [
            f"{name}: {server.boot.sentence() if server.boot else NO_BOOT}" for name, server in self.servers.items()
        ]
        notes += [f"A and B differ in more than the checkpoint: {what}" for what in self._differences()]
        notes += [SAME_SERVER] if self._same_server else []
        bad: list[str] = []
        for one in self.summaries:
            bad += [f"{one.arm} at {one.point}: {count}x {error}" for error, count in one.errors.items()]
            if one.drift is not None:
                notes.append(f"{one.arm} at {one.point}: throughput changed by {one.drift:+.0%} over the run")
            if one.doubt:
                notes.append(f"{one.arm} at {one.point}: {one.doubt}")
            notes += _server_sentences(one)
        notes += [limit["sentence"] for limit in self.limits]
        notes += not_compared(self.summaries)
        notes += [one.sentence() for one in self.comparisons]
        notes += [one.sentence() for one in self.same_pace]
        claims = headlines(self.comparisons)
        if self.comparisons and not claims:
            notes.append("no headline: no difference is shown, or it may not be claimed")
        levels: list[tuple[Level, list[str]]] = [("bad", bad), ("note", notes), ("good", claims)]
        return [(level, sentence) for level, sentences in levels for sentence in sentences]

    @property
    def _same_server(self) -> bool:
        """Whether A and B are one server: one address, or one process under two."""
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
    """Sum up, compare, and set beside it what the GPUs could do at most."""
    groups: dict[tuple[Any, str], list[Block]] = {}
    for block in blocks:
        groups.setdefault((block.point, block.arm), []).append(block)
    summaries = tuple(summarize(group, slo) for group in groups.values())
    # Blocks know what they were measured on, also when they come from a file; foreign files do not tell.
    unknown = "" if gpus else "nobody knows what these results were measured on; --gpus tells"
    reasons = [EMULATED] if emulated else [block.server.get("no_claim_because", unknown) for block in blocks]
    no_claim = next(filter(None, reasons), "")
    limits, missing = _limits(summaries, servers, gpus)
    comparisons = tuple(compare(blocks, summaries, no_claim, design))
    why = next(filter(None, [no_claim, *(one.no_claim_because for one in summaries)]), "")
    pace = tuple(equal_pace(blocks, why)) if design == "abba" else ()
    return Report(servers, summaries, comparisons, pace, design, no_claim, limits, slo, missing)


def _limits(
    summaries: Sequence[Summary], servers: Mapping[str, Server], gpus: str | None
) -> tuple[tuple[Mapping[str, Any], ...], str]:
    """Return the roofline of each point, and why there is none where there is none."""
    if gpus is None:
        return (), "--gpus is not given"
    machine = parse_gpus(gpus)
    made: list[Mapping[str, Any]] = []
    missing = ""
    for name, server in servers.items():
        try:
            checkpoint = served(Path(server.root))
        except (CheckpointError, UsageError) as error:
            missing = f"the checkpoint of {name} is not here: {error.what}"
            continue
        cache = server.settings.get("cache_dtype", "auto")
        kv = "fp8" if "fp8" in cache or (cache == "auto" and "fp8" in (checkpoint.kv_dtype or "")) else "bf16"
        made += [_limit(one, checkpoint, machine, kv) for one in summaries if one.arm == name]
    return tuple(made), missing


def _limit(one: Summary, checkpoint: Served, machine: Gpus, kv: str) -> dict[str, Any]:
    needs, how = checkpoint.needs, checkpoint.activations
    users, context = one.point.concurrency, one.point.context
    decode = decode_limit(needs, machine, users, context, activations=how, kv_dtype=kv)
    prefill = prefill_limit(needs, machine, users, one.point.prompt, activations=how, kv_dtype=kv)
    pace = one.tokens_per_second_per_user
    decoded = pace * one.point.concurrency / decode.tokens_per_second if pace else None
    # With more than one user a first token waits for others' prompts: no rate of prefill then.
    alone = one.prefill_tokens_per_second if one.point.concurrency == 1 else None
    read = alone / prefill.tokens_per_second if alone else None
    said = f"{one.arm} at {one.point}, {machine}:"
    said += f" decode limit {decode.tokens_per_second:,.0f} tok/s ({decode.bound_by})"
    said += f", {decoded:.1%} of it reached" if decoded is not None else ""
    said += f"; prefill limit {prefill.tokens_per_second:,.0f} tok/s ({prefill.bound_by})"
    said += f", {read:.1%} of it reached" if read is not None else ""
    return {
        "arm": one.arm,
        "where": str(one.point),
        "gpus": str(machine),
        "kv_dtype": kv,
        "decode": decode.as_dict(),
        "prefill": prefill.as_dict(),
        "decode_share": decoded,
        "prefill_share": read,
        "sentence": said,
    }


def _server_sentences(one: Summary) -> list[str]:
    seen = one.server
    said: list[str] = []
    if seen.get("prefix_hit_share") is not None:
        said.append(f"prefix cache knew {seen['prefix_hit_share']:.1%} of the prompts' tokens")
    elif seen.get("prefix_queries") == 0:
        said.append("its prefix cache is off")
    if seen.get("draft_acceptance") is not None:
        said.append(f"{seen['draft_acceptance']:.1%} of the draft's tokens accepted")
    if seen.get("kv_use_peak") is not None:
        said.append(f"its KV cache was {seen['kv_use_peak']:.0%} full at most")
    if seen.get("preemptions"):
        said.append(f"{seen['preemptions']:.0f} requests were pushed out of the cache")
    if one.gpus and one.gpus.get("watts"):
        said.append(f"{one.gpus['gpus']} GPUs took {one.gpus['watts']:,.0f} W at {one.gpus['sm_mhz'] or 0:,.0f} MHz")
    if not said and seen.get("generated_tokens") is None:
        said.append("the server has no /metrics: nothing is known of its caches")
    return [f"{one.arm} at {one.point}: {'; '.join(said)}"] if said else []


def _row(one: Summary) -> dict[str, Any]:
    return {
        "arm": one.arm,
        "where": str(one.point),
        "requests_per_second": one.requests_per_second,
        "tokens_per_second": one.tokens_per_second,
        "per_user": one.tokens_per_second_per_user,
        "ttft": _three(one.ttft, 1e3),
        "itl": _three(one.itl, 1e3),
        "tpot": _three(one.tpot, 1e3),
        "e2e": _three(one.e2e, 1),
        "prefill": one.prefill_tokens_per_second,
        "errors": f"{one.failed}/{one.requests}",
        "goodput": one.goodput_per_second,
    }


def _three(spread: Mapping[str, float] | None, scale: float) -> str | None:
    return None if spread is None else "/".join(f"{spread[f'p{at}'] * scale:.3g}" for at in (50, 90, 99))
