"""Reproduction section: versions, commands, the recipe, and hashes of all inputs."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

import yaml

from halfbyte.checkpoint.output_folder import FOLDER
from halfbyte.evidence.audit import Audit
from halfbyte.evidence.fields import items
from halfbyte.evidence.plan import PlanSummary, PruneSummary
from halfbyte.evidence.provenance import Provenance
from halfbyte.evidence.release import Release
from halfbyte.publish.card.facts import CardFacts
from halfbyte.publish.card.markdown import Markdown, code, fenced, phrase, table
from halfbyte.publish.visible_text import names_only

_LONG_LIST = 16  # entries of an exclude list that the card shows in full


def facts(card: CardFacts) -> dict[str, Any]:
    """Return hashes, commands, the recipe and config.json's quantization_config."""
    plan, release = card.plan, card.get(Release)
    return {
        "missing": card.missing(PlanSummary) if plan is None else None,
        "no_provenance": card.missing(Provenance) if card.get(Provenance) is None else None,
        "hashes": table(["", ""], _hashes(card)),
        "commands": fenced("\n".join(_commands(card)), "bash"),
        "as_run": bool(release and release.stages),
        "recipe": fenced(_yaml(plan.recipe), "yaml") if plan else None,
        "block": fenced(json.dumps(_shortened(card.block), indent=2, ensure_ascii=False), "json")
        if card.block
        else None,
    }


def _hashes(card: CardFacts) -> list[tuple[str, Any]]:
    plan, provenance, audit, prune = card.plan, card.get(Provenance), card.get(Audit), card.get(PruneSummary)
    versions: Mapping[str, str] = audit.versions if audit else {}
    version = provenance.code.version if provenance else versions.get("halfbyte")
    commit = provenance.code.commit if provenance else None
    packages = (provenance.environment.packages if provenance else None) or versions
    revision = provenance.source.revision if provenance else None
    parts: Mapping[str, str] = plan.parts if plan else {}
    tokens = plan.calibration.tokens_sha256 if plan and plan.calibration else None
    not_calibrated = "none: not calibrated" if plan else "not stated"
    not_pruned = "not stated" if card.pruned else "none: not pruned"
    return [
        ("halfbyte", phrase("{}{}", version, f", commit {commit}" if commit else "")),
        ("Recipe", phrase("{} (SHA-256 {})", card.recipe.name if card.recipe else None, _hash(parts.get("recipe")))),
        ("Plan fingerprint", _hash(plan.fingerprint if plan else None)),
        ("Source", phrase("{}{}, {} shards", card.base, f", revision {revision}" if revision else "",
                          len(plan.source) or None if plan else None)),
        ("Source tensors and config", phrase("{} and {}", _hash(parts.get("source tensors")),
                                             _hash(parts.get("source config")))),
        ("Calibration tokens, SHA-256", _hash(tokens, not_calibrated)),
        ("Statistics, SHA-256", _hash(plan.statistics_sha256 if plan else None, not_calibrated)),
        ("Kept experts, SHA-256", _hash(prune.kept_sha256 if prune else None, not_pruned)),
        ("Packages", ", ".join(f"{name} {version}" for name, version in packages.items()) or None),
    ]  # fmt: skip


def _hash(value: Any, default: str = "not stated") -> Markdown:
    return code(value) if value else phrase("{}", default)


def _commands(card: CardFacts) -> list[str]:
    """Return the commands that were run, or their equivalent from the plan, with placeholders for folders."""
    release = card.get(Release)
    stages = release.stages if release else ()
    run = [" ".join(shlex.quote(_placed(card, word)) for word in stage.command) for stage in stages]
    if any(run):
        return [line for line in run if line]  # the verdict has no command
    return [_build_command(card), "halfbyte audit OUT --against SRC"]


def _build_command(card: CardFacts) -> str:
    """Return the command that created the checkpoint, as recorded or derived from the plan."""
    recipe = card.recipe
    typed = [shlex.quote(_placed(card, word)) for word in card.plan.command] if card.plan else []
    if typed:
        return " ".join(typed)
    if recipe and recipe.prune and not recipe.quantize:
        return f"halfbyte prune SRC OUT --plan {FOLDER}/{PruneSummary.file}"
    return f"halfbyte quantize SRC OUT -r {shlex.quote(recipe.name if recipe else 'RECIPE')}"


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
    calibrate = card.recipe.calibrate if card.recipe else None
    return [
        phrase("{} ({}{})", code(names_only(row.source)), row.domain, f", split {row.split}" if row.split else "")
        for row in (calibrate.datasets if calibrate else ())
    ]
