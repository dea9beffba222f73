"""How to start it with each engine: the commands of `halfbyte serve`, and each setting with its reason."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from typing import Any

from halfbyte.errors import CheckFailedError, UsageError
from halfbyte.publish.card.known import Known
from halfbyte.publish.card.markdown import Markdown, code, fenced, phrase, table
from halfbyte.publish.card.reading import items, mapping, rows, texts, words
from halfbyte.publish.evidence import PLACES

_PLACEHOLDER = "OUT"
_MOUNTED = "./OUT"  # docker takes a bare word for the name of a volume


def facts(known: Known) -> dict[str, Any]:
    """Return a block for each engine."""
    found, source = launches(known)
    return {
        "engines": [_engine(known, row) for row in found],
        "source": source,
        "missing": known.missing("serve") if not found else None,
    }


def launches(known: Known) -> tuple[list[Mapping[str, Any]], Markdown]:
    """Return the launches that were written, or those for the GPUs that were said; and where they are from."""
    written = rows(known.get("serve"), "launches")
    if written:
        return written, Markdown("Written by `halfbyte serve` from the headers; each setting has its reason.")
    if known.said.gpus is None:
        return [], Markdown("")
    made = _made(known, known.said.gpus)
    return made, phrase("Computed from the headers for {}; no server was started with these commands.", known.said.gpus)


def _made(known: Known, gpus: str) -> list[Mapping[str, Any]]:
    from halfbyte.serve.facts import Wish  # noqa: PLC0415 - only where nothing was written
    from halfbyte.serve.gpus import parse_gpus  # noqa: PLC0415
    from halfbyte.serve.launch import engines_for, launch  # noqa: PLC0415
    from halfbyte.serve.render import as_json  # noqa: PLC0415

    chosen = parse_gpus(gpus)
    found: list[Mapping[str, Any]] = []
    for name in engines_for(chosen):
        try:
            found += rows(as_json([launch(known.served, chosen, Wish(engine=name))]), "launches")
        except (UsageError, CheckFailedError):
            continue  # an engine that cannot serve it has no command
    if not found:
        fix = f"see `{PLACES['serve'].command.format(out=known.evidence.out)}`"
        raise UsageError(f"no engine can serve this checkpoint on {gpus}", where="--gpus", fix=fix)
    return found


def _engine(known: Known, row: Mapping[str, Any]) -> dict[str, Any]:
    settings = [
        [code(one.get("flag") or one.get("setting")), _value(one.get("value")), one.get("reason")]
        for one in rows(row, "settings")
    ]
    return {
        "title": phrase("{} {} on {}", row.get("engine"), row.get("version"), row.get("gpus")),
        "command": fenced(_shell(known, row, "command"), "bash"),
        "docker": fenced(_shell(known, row, "docker"), "bash") if items(row, "docker") else None,
        "image": code(words(row, "image") or "not stated"),
        "settings": table(["Setting", "Value", "Why"], settings) if settings else None,
        "warnings": [words(one, "warning") for one in rows(row, "warnings")],
    }


def _value(value: Any) -> Markdown:
    shown = json.dumps(value, ensure_ascii=False) if isinstance(value, (dict, list)) else value
    return code("yes" if value is True else shown)


def _shell(known: Known, row: Mapping[str, Any], key: str) -> str:
    """Return a command to paste: the model by its name on the Hub or as OUT, an option a line."""
    local = words(row, "model") or _PLACEHOLDER
    # A container mounts a folder; without one the engine loads from the Hub by the name that was said.
    model = _MOUNTED if key == "docker" else known.repository or _PLACEHOLDER
    given = [word.replace(local, model) if local in word else word for word in texts(row, key)]
    environment = [f"{name}={shlex.quote(str(value))}" for name, value in mapping(row, "environment").items()]
    lines: list[str] = [" ".join(environment)] if environment and key == "command" else [""]
    for word in given:
        quoted = shlex.quote(word)
        if (word.startswith("-") and lines[-1]) or (key == "docker" and word == row.get("image")):
            lines.append(quoted)
        else:
            lines[-1] = f"{lines[-1]} {quoted}".strip()
    return " \\\n  ".join(line for line in lines if line)
