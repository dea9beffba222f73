"""What a load generator measured; from an emulated or CPU server no speed is claimed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from halfbyte.folders import FOLDER
from halfbyte.publish.card.figures import counted, figure, milliseconds, percent
from halfbyte.publish.card.known import Known
from halfbyte.publish.card.markdown import Markdown, phrase, table
from halfbyte.publish.card.reading import mapping, number, rows, texts, words

HEAD = ["Server", "Load", "Requests", "Failed", "Output tok/s", "tok/s for a user", "Prefill tok/s", "TTFT p50, ms",
        "TTFT p99, ms", "TPOT p50, ms", "TPOT p99, ms"]  # fmt: skip
_PICTURE = "bench.svg"
_MORE = (
    ("prefix_hit_share", "the prefix cache knew {} of the prompts"),
    ("draft_acceptance", "{} of the draft's guesses were accepted"),
    ("kv_use_peak", "the KV cache was {} full"),
)


def facts(known: Known) -> dict[str, Any]:
    """Return the table, the picture and what may be claimed."""
    found = known.get("bench")
    if found is None:
        return {"missing": known.missing("bench")}
    picture = known.evidence.path("bench").with_name(_PICTURE)
    place = f"{FOLDER}/bench/{_PICTURE}"
    return {
        "missing": None,
        "rows": table(HEAD, [_row(row) for row in rows(found, "points")]),
        "picture": Markdown(f"![Output tokens a second, of the node against one user]({place})")
        if picture.is_file()
        else None,
        "no_claim": _no_claim(known, found),
        "headlines": [] if no_claim_because(found) else texts(found, "headlines"),
        "notes": [*_servers(found), *_notes(found)],
        "design": words(found, "design"),
    }


def no_claim_because(found: Mapping[str, Any]) -> str | None:
    """Return why no speed may be claimed; a server that computes on a CPU or emulates never supports one."""
    told = words(found, "no_claim_because")
    servers = [mapping(server) for server in mapping(found, "servers").values()]
    if any(server.get("emulated") is True for server in servers):
        return "the server emulates its number format"
    if any(server.get("device") == "cpu" for server in servers):
        return "the server computes on a CPU"
    return told


def _no_claim(known: Known, found: Mapping[str, Any]) -> Markdown | None:
    why = no_claim_because(found)
    if why is None:
        return None
    text = (
        "**No speed is claimed**, because {}: these figures show that the server works and how it was asked, not how "
        "fast {} is on the hardware it is made for."
    )
    return phrase(text, why, known.title)


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


def _servers(found: Mapping[str, Any]) -> list[Markdown]:
    told: list[Markdown] = []
    for arm, server in mapping(found, "servers").items():
        emulated = ", emulating its number format" if mapping(server).get("emulated") is True else ""
        started = figure(server, "boot", "seconds") if number(server, "boot", "seconds") is not None else None
        boot = f"; it was ready after {started} s" if started else "; how long it took to start was not measured"
        text = "Server {} ({}): {} on {}{}, context {} tokens{}"
        names = (words(server, key) for key in ("model", "version", "device"))
        told.append(phrase(text, arm, *names, emulated, counted(server, "context"), boot))
    return told


def _notes(found: Mapping[str, Any]) -> list[Markdown]:
    told = [phrase("The servers differ: {}", one) for one in texts(found, "differences")]
    for row in rows(found, "points"):
        where = f"{words(row, 'arm')} at {words(row, 'where')}"
        told += [phrase(f"{{}}: {text}", where, percent(row, "server", key, decimals=1)) for key, text in _MORE
                 if number(row, "server", key) is not None]  # fmt: skip
        watts = number(row, "gpus", "watts")
        told += [phrase("{}: {} W", where, figure(watts))] if watts is not None else []
        told += [phrase("{}: no claim, {}", where, why)] if (why := words(row, "no_claim_because")) else []
    return told
