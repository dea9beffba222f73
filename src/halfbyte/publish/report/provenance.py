"""Provenance section: audit, plan, source, code, environment, launch commands, and missing evidence."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any, cast

from halfbyte.publish.card.source_card import repository_name
from halfbyte.publish.evidence import PLACES, Evidence, to_measure
from halfbyte.publish.local_folders import names_only, without_folders
from halfbyte.publish.report.blocks import Block, Fold, Level, Section, Table, command_for, missing

_DEEPEST = 4
_AUDIT: dict[str, Level] = {"good": "good", "bad": "bad", "note": "note"}


def provenance(evidence: Evidence, name: str) -> Section:
    """Return the tables; `name` is the title of the report."""
    blocks: list[Block] = []
    audit, plan, found = evidence.get("audit"), evidence.get("plan"), evidence.get("provenance")
    if audit is None:
        blocks.append(missing(evidence, "audit", "whether the files match the plan"))
    else:
        findings = audit["findings"]
        rows = [[str(finding[key]) for key in ("check", "text", "why", "fix")] for finding in findings]
        levels: list[Level] = [_AUDIT.get(str(finding["level"]), "note") for finding in findings]
        blocks.append(Table("Audit", ("check", "finding", "reason", "fix"), rows, levels=levels))
    if plan is not None:
        rows = [["fingerprint", str(plan["fingerprint"])], *_flat(plan["parts"])]
        blocks.append(Table("Plan", ("part", "value"), rows))
        blocks.append(Fold("Recipe", [Table("Recipe", ("key", "value"), _flat(plan["recipe"]))]))
        if isinstance(plan.get("source"), dict):
            blocks.append(Fold("Source shards", [Table("Source shards", ("shard", "hash"), _flat(plan["source"]))]))
    if found is None:
        blocks.append(missing(evidence, "provenance", "hashes of source and outputs, code, environment"))
    else:
        blocks.append(Fold("Provenance", [Table("Provenance", ("key", "value"), _flat(found))]))
    serve = evidence.get("serve")
    if serve is None:
        blocks.append(missing(evidence, "serve", "launch commands"))
    else:
        rows = [
            [str(launch["engine"]), str(launch["gpus"]), _command(launch, repository_name(name))]
            for launch in serve["launches"]
        ]
        blocks.append(Table("Launch commands", ("engine", "GPUs", "command"), rows))
    rows = [[PLACES[kind].file, gap.why, command_for(kind)] for kind, gap in to_measure(evidence).items()]
    if rows:
        blocks.append(Table("Missing evidence", ("file", "reason", "command"), rows))
    return Section("provenance", "Provenance", blocks)


def _command(launch: Mapping[str, Any], name: str) -> str:
    """Return a launch command for a download in the folder `name`, as on the card."""
    words = [name if word == launch.get("served_name") else str(word) for word in launch["command"]]
    local = launch.get("model")
    return shlex.join(word.replace(str(local), f"./{name}") if local else word for word in words)


def _flat(found: Mapping[str, Any], before: str = "", depth: int = 0) -> list[list[str]]:
    """Return nested objects as rows with dotted keys."""
    rows: list[list[str]] = []
    for key, value in found.items():
        name = f"{before}{without_folders(str(key))}"
        if isinstance(value, dict) and value and depth < _DEEPEST:
            rows += _flat(cast("dict[str, Any]", value), f"{name}.", depth + 1)
        else:
            rows.append([name, "" if value is None else str(names_only(value))])
    return rows
