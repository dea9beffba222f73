"""Benchmark section. Measurements on an emulated or CPU server support no performance claim."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from halfbyte.checkpoint.output_folder import FOLDER
from halfbyte.evidence.fields import (
    mapping,
    number,
    rows,
    texts,
    words,
)
from halfbyte.evidence.measured_files import FOLDER_NAME
from halfbyte.publish.card.facts import CardFacts
from halfbyte.publish.card.figures import counted, figure, milliseconds, percent
from halfbyte.publish.card.markdown import Markdown, phrase, table

HEAD = ["Server", "Load", "Requests", "Failed", "Output tok/s", "tok/s per user", "Prefill tok/s", "TTFT p50, ms",
        "TTFT p99, ms", "TPOT p50, ms", "TPOT p99, ms"]  # fmt: skip
_PICTURE = "bench.svg"
_MORE = (
    ("prefix_hit_share", "prefix-cache hit rate {}"),
    ("draft_acceptance", "draft acceptance rate {}"),
    ("kv_use_peak", "peak KV-cache usage {}"),
)


def facts(card: CardFacts) -> dict[str, Any]:
    """Return the table, the chart, and whether performance may be claimed."""
    bench = card.get("bench")
    if bench is None:
        return {"missing": card.missing("bench")}
    picture = card.evidence.path("bench").with_name(_PICTURE)
    place = f"{FOLDER}/bench/{_PICTURE}"
    return {
        "missing": None,
        "rows": table(HEAD, [_row(row) for row in rows(bench, "points")]),
        "picture": Markdown(f"![Output tokens per second, node against single user]({place})")
        if picture.is_file()
        else None,
        "no_claim": _no_claim(card, bench),
        "headlines": [] if no_claim_because(bench) else texts(bench, "headlines"),
        "notes": [*_servers(card, bench), *_notes(bench)],
        "design": words(bench, "design"),
    }


def no_claim_because(found: Mapping[str, Any]) -> str | None:
    """Return why no performance may be claimed, or None. Emulation and CPU servers never support a claim."""
    recorded = words(found, "no_claim_because")
    servers = [mapping(server) for server in mapping(found, "servers").values()]
    if any(server.get("emulated") is True for server in servers):
        return "the server emulates its number format"
    if any(server.get("device") == "cpu" for server in servers):
        return "the server runs on a CPU"
    return recorded


def _no_claim(card: CardFacts, found: Mapping[str, Any]) -> Markdown | None:
    why = no_claim_because(found)
    if why is None:
        return None
    text = (
        "**No performance claim**, because {}. These figures show that the server works under load, not how fast {} "
        "runs on its target hardware."
    )
    return phrase(text, why, card.title)


def _row(row: Mapping[str, Any]) -> list[Any]:
    return [
        words(row, "arm"),
        words(row, "where"),
        counted(row, "requests"),
        counted(row, "failed"),
        figure(row, "tokens_per_second"),
        figure(row, "tokens_per_second_per_user"),
        figure(row, "prefill_tokens_per_second"),
        milliseconds(row, "ttft", "p50"),
        milliseconds(row, "ttft", "p99"),
        milliseconds(row, "tpot", "p50"),
        milliseconds(row, "tpot", "p99"),
    ]


def _servers(card: CardFacts, found: Mapping[str, Any]) -> list[Markdown]:
    lines: list[Markdown] = []
    for arm, server in mapping(found, "servers").items():
        emulated = ", emulating its number format" if mapping(server).get("emulated") is True else ""
        started = figure(server, "boot", "seconds") if number(server, "boot", "seconds") is not None else None
        boot = f"; startup took {started} s" if started else "; startup time not measured"
        text = "Server {} ({}): {} on {}{}, context {} tokens{}"
        model = words(server, "model")
        here = (words(found, FOLDER_NAME), card.evidence.out.resolve().name)  # served under its folder's name
        names = (card.local_name if model in here else model, words(server, "version"), words(server, "device"))
        lines.append(phrase(text, arm, *names, emulated, counted(server, "context"), boot))
    return lines


def _notes(found: Mapping[str, Any]) -> list[Markdown]:
    notes = [phrase("The servers differ: {}", difference) for difference in texts(found, "differences")]
    for row in rows(found, "points"):
        where = f"{words(row, 'arm')} at {words(row, 'where')}"
        notes += [phrase(f"{{}}: {text}", where, percent(row, "server", key, decimals=1)) for key, text in _MORE
                 if number(row, "server", key) is not None]  # fmt: skip
        watts = number(row, "gpus", "watts")
        notes += [phrase("{}: {} W", where, figure(watts))] if watts is not None else []
        notes += [phrase("{}: no claim, {}", where, why)] if (why := words(row, "no_claim_because")) else []
    return notes
