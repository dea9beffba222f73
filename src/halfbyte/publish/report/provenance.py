"""Provenance section: audit, plan, source, code, environment, launch commands, and missing evidence."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from halfbyte.evidence.audit import Audit
from halfbyte.evidence.fields import mapping
from halfbyte.evidence.folder import KINDS, Evidence, to_measure
from halfbyte.evidence.launches import LaunchCommand, Launches
from halfbyte.evidence.plan import PlanSummary
from halfbyte.evidence.provenance import Provenance
from halfbyte.publish.card.source_card import repository_name
from halfbyte.publish.local_folders import names_only, without_folders
from halfbyte.publish.report.blocks import Block, Fold, Level, Section, Table, command_for, missing

_DEEPEST = 4


def provenance(evidence: Evidence, name: str) -> Section:
    """Return the tables; `name` is the title of the report."""
    blocks: list[Block] = []
    audit, plan, found = evidence.get(Audit), evidence.get(PlanSummary), evidence.get(Provenance)
    if audit is None:
        blocks.append(missing(evidence, Audit, "whether the files match the plan"))
    else:
        rows = [[finding.check, finding.text, finding.why, finding.fix] for finding in audit.findings]
        levels: list[Level] = [finding.level for finding in audit.findings]
        blocks.append(Table("Audit", ("check", "finding", "reason", "fix"), rows, levels=levels))
    if plan is not None:
        rows = [["fingerprint", plan.fingerprint], *_flat(plan.parts)]
        blocks.append(Table("Plan", ("part", "value"), rows))
        blocks.append(Fold("Recipe", [Table("Recipe", ("key", "value"), _flat(plan.recipe))]))
        if plan.source:
            blocks.append(Fold("Source shards", [Table("Source shards", ("shard", "hash"), _flat(plan.source))]))
    if found is None:
        blocks.append(missing(evidence, Provenance, "hashes of source and outputs, code, environment"))
    else:
        blocks.append(Fold("Provenance", [Table("Provenance", ("key", "value"), _flat(found.as_json()))]))
    serve = evidence.get(Launches)
    if serve is None:
        blocks.append(missing(evidence, Launches, "launch commands"))
    else:
        rows = [[launch.engine, launch.gpus, _command(launch, repository_name(name))] for launch in serve.launches]
        blocks.append(Table("Launch commands", ("engine", "GPUs", "command"), rows))
    rows = [[KINDS[kind].file, gap.why, command_for(KINDS[kind])] for kind, gap in to_measure(evidence).items()]
    if rows:
        blocks.append(Table("Missing evidence", ("file", "reason", "command"), rows))
    return Section("provenance", "Provenance", blocks)


def _command(launch: LaunchCommand, name: str) -> str:
    """Return a launch command for a download in the folder `name`, as on the card."""
    words = [name if word == launch.served_name else word for word in launch.command]
    return shlex.join(word.replace(launch.model, f"./{name}") if launch.model else word for word in words)


def _flat(found: Mapping[str, Any], before: str = "", depth: int = 0) -> list[list[str]]:
    """Return nested objects as rows with dotted keys."""
    rows: list[list[str]] = []
    for key, value in found.items():
        name = f"{before}{without_folders(str(key))}"
        if mapping(value) and depth < _DEEPEST:
            rows += _flat(mapping(value), f"{name}.", depth + 1)
        else:
            rows.append([name, "" if value is None else str(names_only(value))])
    return rows
