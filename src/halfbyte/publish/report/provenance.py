"""Where everything comes from: source, plan, code, environment, data, audit; and what was not measured."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any, cast

from halfbyte.publish.evidence import PLACES, Evidence
from halfbyte.publish.local_folders import names_only, without_folders
from halfbyte.publish.report.blocks import Block, Fold, Level, Section, Table, command_for, missing

_DEEPEST = 4
_AUDIT: dict[str, Level] = {"good": "good", "bad": "bad", "note": "note"}


def provenance(evidence: Evidence) -> Section:
    """Return the tables."""
    blocks: list[Block] = []
    audit, plan, found = evidence.get("audit"), evidence.get("plan"), evidence.get("provenance")
    if audit is None:
        blocks.append(missing(evidence, "audit", "whether the files are what was planned"))
    else:
        findings = audit["findings"]
        rows = [[str(one["check"]), str(one["text"]), str(one["why"]), str(one["fix"])] for one in findings]
        levels: list[Level] = [_AUDIT.get(str(one["level"]), "note") for one in findings]
        blocks.append(Table("Audit", ("check", "found", "why", "what to do"), rows, levels=levels))
    if plan is not None:
        rows = [["fingerprint", str(plan["fingerprint"])], *_flat(plan["parts"])]
        blocks.append(Table("Plan", ("part", "value"), rows))
        blocks.append(Fold("Recipe", [Table("Recipe", ("key", "value"), _flat(plan["recipe"]))]))
        if isinstance(plan.get("source"), dict):
            blocks.append(Fold("Source shards", [Table("Source shards", ("shard", "hash"), _flat(plan["source"]))]))
    if found is None:
        blocks.append(missing(evidence, "provenance", "hashes of source, code, environment and outputs"))
    else:
        blocks.append(Fold("Provenance", [Table("Provenance", ("key", "value"), _flat(found))]))
    serve = evidence.get("serve")
    if serve is None:
        blocks.append(missing(evidence, "serve", "how to serve it"))
    else:
        rows = [[str(one["engine"]), str(one["gpus"]), _command(one)] for one in serve["launches"]]
        blocks.append(Table("How to serve it", ("engine", "GPUs", "command"), rows))
    rows = [[PLACES[kind].file, one.why, command_for(kind)] for kind, one in evidence.missing.items()]
    if rows:
        blocks.append(Table("What is not here", ("file", "why", "command"), rows))
    return Section("provenance", "Provenance", blocks)


def _command(launch: Mapping[str, Any]) -> str:
    """Return a command to paste, with OUT for the folder that it was written for."""
    local = str(launch.get("model") or "OUT")
    return shlex.join(str(word).replace(local, "OUT") for word in launch["command"])


def _flat(found: Mapping[str, Any], before: str = "", depth: int = 0) -> list[list[str]]:
    """Return nested keys as dotted names."""
    rows: list[list[str]] = []
    for key, value in found.items():
        name = f"{before}{without_folders(str(key))}"
        if isinstance(value, dict) and value and depth < _DEEPEST:
            rows += _flat(cast("dict[str, Any]", value), f"{name}.", depth + 1)
        else:
            rows.append([name, "" if value is None else str(names_only(value))])
    return rows
