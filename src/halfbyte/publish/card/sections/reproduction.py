"""Reproduction section: versions, commands, the recipe, and hashes of all inputs."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

from halfbyte.checkpoint.output_folder import FOLDER
from halfbyte.engine.pipeline import COMMAND
from halfbyte.evidence.fields import at, items, mapping, rows, texts, words
from halfbyte.publish.card.facts import CardFacts
from halfbyte.publish.card.markdown import Markdown, code, fenced, phrase, table
from halfbyte.publish.evidence import PLACES
from halfbyte.publish.local_folders import names_only

_LONG_LIST = 16  # entries of an exclude list that the card shows in full


def facts(card: CardFacts) -> dict[str, Any]:
    """Return hashes, commands, the recipe and config.json's quantization_config."""
    plan = card.get("plan")
    return {
        "missing": card.missing("plan") if plan is None else None,
        "no_provenance": card.missing("provenance") if card.get("provenance") is None else None,
        "hashes": table(["", ""], _hashes(card)),
        "commands": fenced("\n".join(_commands(card)), "bash"),
        "as_run": bool(rows(card.get("release"), "stages")),
        "recipe": fenced(_yaml(card.recipe), "yaml") if card.recipe else None,
        "block": fenced(json.dumps(_shortened(card.block), indent=2, ensure_ascii=False), "json")
        if card.block
        else None,
    }


def _hashes(card: CardFacts) -> list[tuple[str, Any]]:
    plan, provenance = card.plan, card.get("provenance") or {}
    version = words(provenance, "code", "version") or words(card.get("audit"), "versions", "halfbyte")
    commit = words(provenance, "code", "commit") or words(provenance, "code", "git")
    packages = mapping(provenance, "environment", "packages") or mapping(card.get("audit"), "versions")
    shards = mapping(plan, "source")
    not_calibrated = "none: not calibrated" if plan else "not stated"
    not_pruned = "not stated" if card.pruned else "none: not pruned"
    revision = words(provenance, "source", "revision")
    return [
        ("halfbyte", phrase("{}{}", version, f", commit {commit}" if commit else "")),
        ("Recipe", phrase("{} (SHA-256 {})", words(card.recipe, "name"), _hash(at(plan, "parts", "recipe")))),
        ("Plan fingerprint", _hash(words(plan, "fingerprint"))),
        ("Source", phrase("{}{}, {} shards", card.base, f", revision {revision}" if revision else "",
                          len(shards) or None)),
        ("Source tensors and config", phrase("{} and {}", _hash(at(plan, "parts", "source tensors")),
                                             _hash(at(plan, "parts", "source config")))),
        ("Calibration tokens, SHA-256", _hash(words(plan, "calibration", "tokens_sha256"), not_calibrated)),
        ("Statistics, SHA-256", _hash(words(plan, "statistics_sha256"), not_calibrated)),
        ("Kept experts, SHA-256", _hash(words(card.get("prune"), "kept_sha256"), not_pruned)),
        ("Packages", ", ".join(f"{name} {version}" for name, version in packages.items()) or None),
    ]  # fmt: skip


def _hash(value: Any, default: str = "not stated") -> Markdown:
    return code(value) if value else phrase("{}", default)


def _commands(card: CardFacts) -> list[str]:
    """Return the commands that were run, or their equivalent from the plan, with placeholders for folders."""
    stages = rows(card.get("release"), "stages")
    run = [" ".join(shlex.quote(_placed(card, word)) for word in texts(stage, "command")) for stage in stages]
    if any(run):
        return [line for line in run if line]  # the verdict has no command
    return [_build_command(card), "halfbyte audit OUT --against SRC"]


def _build_command(card: CardFacts) -> str:
    """Return the command that created the checkpoint, as recorded or derived from the plan."""
    typed = [shlex.quote(_placed(card, word)) for word in texts(card.plan, COMMAND)]
    if typed:
        return " ".join(typed)
    if mapping(card.recipe, "prune") and not mapping(card.recipe, "quantize"):
        return f"halfbyte prune SRC OUT --plan {FOLDER}/{PLACES['prune'].file}"
    return f"halfbyte quantize SRC OUT -r {shlex.quote(words(card.recipe, 'name') or 'RECIPE')}"


def _placed(card: CardFacts, word: str) -> str:
    """Return an argument with OUT in place of this folder, and other absolute paths reduced to their names."""
    out = str(card.evidence.out.resolve())
    if word in (out, str(card.evidence.out)):
        return "OUT"
    if word.startswith(f"{out}/"):
        return f"OUT/{word.removeprefix(f'{out}/')}"
    domain, equals, path = word.partition("=/")
    if equals:
        return f"{domain}={PurePath(path).name}"
    return PurePath(word).name if word.startswith("/") else word


def _yaml(recipe: Mapping[str, Any]) -> str:
    """Return the resolved recipe as YAML, with paths reduced to file names."""
    import yaml  # noqa: PLC0415 - `halfbyte --help` stays instant

    return yaml.safe_dump(names_only(recipe), sort_keys=False, allow_unicode=True, width=110)


def _shortened(block: Mapping[str, Any]) -> dict[str, Any]:
    """Return the block with long lists truncated and marked as such."""
    shortened: dict[str, Any] = {}
    for key, value in block.items():
        names = items(value)
        long = isinstance(value, list) and len(names) > _LONG_LIST
        more = f"... and {len(names) - _LONG_LIST} more, in config.json"
        shortened[key] = [*names[:_LONG_LIST], more] if long else value
    return shortened


def source_of_data(card: CardFacts) -> list[Markdown]:
    """Return the calibration data sets."""
    return [
        phrase("{} ({}{})", code(names_only(row.get("source"))), row.get("domain"),
               f", split {row.get('split')}" if row.get("split") else "")
        for row in rows(card.recipe, "calibrate", "datasets")
    ]  # fmt: skip
