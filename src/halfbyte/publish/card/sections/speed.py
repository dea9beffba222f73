"""Benchmark section. Measurements on an emulated or CPU server support no performance claim."""

from __future__ import annotations

from typing import Any

from halfbyte.checkpoint.output_folder import FOLDER
from halfbyte.evidence.benchmark import Benchmark, BenchPoint
from halfbyte.publish.card.facts import CardFacts
from halfbyte.publish.card.figures import counted, figure, milliseconds, percent
from halfbyte.publish.card.markdown import Markdown, phrase, table

HEAD = ["Server", "Load", "Requests", "Failed", "Output tok/s", "tok/s per user", "Prefill tok/s", "TTFT p50, ms",
        "TTFT p99, ms", "TPOT p50, ms", "TPOT p99, ms"]  # fmt: skip
_PICTURE = "bench.svg"


def facts(card: CardFacts) -> dict[str, Any]:
    """Return the table, the chart, and whether performance may be claimed."""
    bench = card.get(Benchmark)
    if bench is None:
        return {"missing": card.missing(Benchmark)}
    picture = card.evidence.path(Benchmark).with_name(_PICTURE)
    place = f"{FOLDER}/bench/{_PICTURE}"
    return {
        "missing": None,
        "rows": table(HEAD, [_row(row) for row in bench.points]),
        "picture": Markdown(f"![Output tokens per second, node against single user]({place})")
        if picture.is_file()
        else None,
        "no_claim": _no_claim(card, bench),
        "headlines": [] if no_claim_because(bench) else [text for text in bench.headlines if text.strip()],
        "notes": [*_servers(card, bench), *_notes(bench)],
        "design": bench.design,
    }


def no_claim_because(bench: Benchmark) -> str | None:
    """Return why no performance may be claimed, or None. Emulation and CPU servers never support a claim."""
    if any(server.emulated for server in bench.servers.values()):
        return "the server emulates its number format"
    if any(server.device == "cpu" for server in bench.servers.values()):
        return "the server runs on a CPU"
    return bench.no_claim_because or None


def _no_claim(card: CardFacts, bench: Benchmark) -> Markdown | None:
    why = no_claim_because(bench)
    if why is None:
        return None
    text = (
        "**No performance claim**, because {}. These figures show that the server works under load, not how fast {} "
        "runs on its target hardware."
    )
    return phrase(text, why, card.title)


def _row(row: BenchPoint) -> list[Any]:
    ttft, tpot = row.ttft or {}, row.tpot or {}
    return [
        row.arm,
        row.label,
        counted(row.requests),
        counted(row.failed),
        figure(row.tokens_per_second),
        figure(row.tokens_per_second_per_user),
        figure(row.prefill_tokens_per_second),
        milliseconds(ttft.get("p50")),
        milliseconds(ttft.get("p99")),
        milliseconds(tpot.get("p50")),
        milliseconds(tpot.get("p99")),
    ]


def _servers(card: CardFacts, bench: Benchmark) -> list[Markdown]:
    lines: list[Markdown] = []
    for arm, server in bench.servers.items():
        emulated = ", emulating its number format" if server.emulated else ""
        boot = f"; startup took {figure(server.boot.seconds)} s" if server.boot else "; startup time not measured"
        text = "Server {} ({}): {} on {}{}, context {} tokens{}"
        here = (bench.measured_folder, card.evidence.out.resolve().name)  # served under its folder's name
        name = card.local_name if server.model in here else server.model
        names = (name or None, server.version or None, server.device)
        lines.append(phrase(text, arm, *names, emulated, counted(server.context), boot))
    return lines


def _notes(bench: Benchmark) -> list[Markdown]:
    notes = [phrase("The servers differ: {}", difference) for difference in bench.differences]
    for row in bench.points:
        where, counters = f"{row.arm} at {row.label}", row.server
        shares = {
            "prefix-cache hit rate": counters.prefix_hit_share,
            "draft acceptance rate": counters.draft_acceptance,
            "peak KV-cache usage": counters.kv_use_peak,
        }
        notes += [phrase("{}: {} {}", where, name, percent(share, decimals=1)) for name, share in shares.items()
                 if share is not None]  # fmt: skip
        notes += [phrase("{}: {} W", where, figure(row.watts))] if row.watts is not None else []
        notes += [phrase("{}: no claim, {}", where, row.no_claim_because)] if row.no_claim_because else []
    return notes
