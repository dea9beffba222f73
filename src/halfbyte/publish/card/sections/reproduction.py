"""How to make it again: versions, commands, the recipe, and hashes of everything that went in."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from typing import Any

from halfbyte.publish.card.known import Known
from halfbyte.publish.card.markdown import Markdown, code, fenced, phrase, table
from halfbyte.publish.card.reading import at, items, mapping, rows, texts, words
from halfbyte.publish.local_folders import names_only

_LONG_LIST = 16  # entries of an exclude list that the card shows in full
_ENV_VALUE = re.compile(r"/.*/")


def facts(known: Known) -> dict[str, Any]:
    """Return hashes, commands, the recipe and config.json's block."""
    plan = known.get("plan")
    return {
        "missing": known.missing("plan") if plan is None else None,
        "no_provenance": known.missing("provenance") if known.get("provenance") is None else None,
        "hashes": table(["", ""], _hashes(known)),
        "commands": fenced("\n".join(_commands(known)), "bash"),
        "as_run": bool(rows(known.get("release"), "stages")),
        "recipe": fenced(_yaml(known.recipe), "yaml") if known.recipe else None,
        "block": fenced(json.dumps(_shortened(known.block), indent=2, ensure_ascii=False), "json")
        if known.block
        else None,
    }


def _hashes(known: Known) -> list[tuple[str, Any]]:
    plan, provenance = known.plan, known.get("provenance") or {}
    version = words(provenance, "code", "version") or words(known.get("audit"), "versions", "halfbyte")
    commit = words(provenance, "code", "commit") or words(provenance, "code", "git")
    packages = mapping(provenance, "environment", "packages") or mapping(known.get("audit"), "versions")
    shards = mapping(plan, "source")
    none = "none: nothing was calibrated" if plan else "not stated"
    whole = "not stated" if known.pruned else "none: nothing was pruned"
    revision = words(provenance, "source", "revision")
    return [
        ("halfbyte", phrase("{}{}", version, f", commit {commit}" if commit else "")),
        ("Recipe", phrase("{} (SHA-256 {})", words(known.recipe, "name"), _hash(at(plan, "parts", "recipe")))),
        ("Plan fingerprint", _hash(words(plan, "fingerprint"))),
        ("Source", phrase("{}, revision {}, {} shards", known.base, revision, len(shards) or None)),
        ("Source's tensors and config", phrase("{} and {}", _hash(at(plan, "parts", "source tensors")),
                                               _hash(at(plan, "parts", "source config")))),
        ("Calibration tokens, SHA-256", _hash(words(plan, "calibration", "tokens_sha256"), none)),
        ("Statistics, SHA-256", _hash(words(plan, "statistics_sha256"), none)),
        ("Kept experts, SHA-256", _hash(words(known.get("prune"), "kept_sha256"), whole)),
        ("Packages", ", ".join(f"{name} {version}" for name, version in packages.items()) or None),
    ]  # fmt: skip


def _hash(found: Any, otherwise: str = "not stated") -> Markdown:
    return code(found) if found else phrase("{}", otherwise)


def _commands(known: Known) -> list[str]:
    """Return the commands that were run, or those that the plan amounts to; folders by their part in them."""
    stages = rows(known.get("release"), "stages")
    run = [" ".join(shlex.quote(_placed(known, word)) for word in texts(stage, "command")) for stage in stages]
    if any(run):
        return [line for line in run if line]  # the verdict is no command
    recipe = shlex.quote(words(known.recipe, "name") or "RECIPE")
    return [f"halfbyte quantize SRC OUT -r {recipe}", "halfbyte audit OUT --against SRC"]


def _placed(known: Known, word: str) -> str:
    """Return a word of a command with OUT for this folder and SRC for any other that is absolute."""
    out = str(known.evidence.out.resolve())
    if word in (out, str(known.evidence.out)):
        return "OUT"
    if word.startswith(f"{out}/"):
        return f"OUT/{word.removeprefix(f'{out}/')}"
    return _ENV_VALUE.sub("", word) if word.startswith("/") else word


def _yaml(recipe: Mapping[str, Any]) -> str:
    """Return the recipe as the plan understood it; data files on the machine that ran it by their names."""
    import yaml  # noqa: PLC0415 - `halfbyte --help` stays instant

    return yaml.safe_dump(names_only(recipe), sort_keys=False, allow_unicode=True, width=110)


def _shortened(block: Mapping[str, Any]) -> dict[str, Any]:
    """Return the block with long lists cut, and said so in their place."""
    found: dict[str, Any] = {}
    for key, value in block.items():
        names = items(value)
        long = isinstance(value, list) and len(names) > _LONG_LIST
        found[key] = [*names[:_LONG_LIST], f"... and {len(names) - _LONG_LIST} more, in config.json"] if long else value
    return found


def source_of_data(known: Known) -> list[Markdown]:
    """Return the sets that calibration read."""
    return [
        phrase("{} ({}{})", code(names_only(row.get("source"))), row.get("domain"),
               f", split {row.get('split')}" if row.get("split") else "")
        for row in rows(known.recipe, "calibrate", "datasets")
    ]  # fmt: skip
