"""Summary and provenance sections: verdict and key figures; audit, plan, source, code and launch commands."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from halfbyte.evidence.audit import Audit
from halfbyte.evidence.benchmark import Benchmark
from halfbyte.evidence.comparison import Comparison
from halfbyte.evidence.evaluation import Evaluation
from halfbyte.evidence.fields import mapping
from halfbyte.evidence.folder import KINDS, Evidence, to_measure
from halfbyte.evidence.launches import LaunchCommand, Launches
from halfbyte.evidence.loops import Loops
from halfbyte.evidence.plan import PlanSummary
from halfbyte.evidence.probes import Probes, coverage
from halfbyte.evidence.provenance import Provenance
from halfbyte.evidence.release import Release
from halfbyte.evidence.verdict import ACCEPT, headline
from halfbyte.publish.card.source_card import repository_name
from halfbyte.publish.report.blocks import (
    NOT_MEASURED,
    Block,
    Fold,
    Level,
    Say,
    Section,
    Table,
    command_for,
    formatted,
    missing,
    percent,
)
from halfbyte.publish.visible_text import names_only, without_folders
from halfbyte.ui.units import size

_VERDICTS: dict[str, Level] = {ACCEPT: "good", "UNPROVEN": "note", "UNFINISHED": "note"}
_OUTCOMES: dict[str, Level] = {"passed": "good", "failed": "bad", "anomalous": "bad", "infeasible": "bad"}


def summary(evidence: Evidence) -> Section:
    """Return the verdict with its gates, and the key figures."""
    release = evidence.get(Release)
    blocks: list[Block] = []
    if release is None:
        blocks += [Say("No verdict yet.", "note"), missing(evidence, Release, "verdict")]
    else:
        text = headline(release.verdict, evidence.get(Evaluation))
        undecided = release.verdict == ACCEPT and text != release.verdict
        blocks.append(Say(text, "note" if undecided else _VERDICTS.get(release.verdict, "bad")))
        blocks += [Say(why) for why in release.why]
    blocks.append(Table("Key figures", ("figure", "value"), figures(evidence)))
    if release is not None:
        judged = [[gate.name, gate.outcome, gate.measured, gate.required, gate.why] for gate in release.gates]
        levels: list[Level] = [_OUTCOMES.get(gate.outcome, "note") for gate in release.gates]
        blocks.append(Table("Gates", ("gate", "outcome", "measured", "required", "reason"), judged, levels=levels))
    return Section("summary", "Summary", blocks)


def figures(evidence: Evidence) -> list[list[str]]:
    """Return all key figures, measured or not."""
    plan, audit, comparison = evidence.get(PlanSummary), evidence.get(Audit), evidence.get(Comparison)
    evaluation, loops = evidence.get(Evaluation), evidence.get(Loops)
    total = comparison.total if comparison else None
    return [
        ["recipe", plan.choices.name if plan else NOT_MEASURED],
        ["description", plan.choices.description if plan else NOT_MEASURED],
        ["output size", size(plan.write_nbytes) if plan else NOT_MEASURED],
        ["read from the source", size(plan.read_nbytes) if plan else NOT_MEASURED],
        ["audit", NOT_MEASURED if audit is None else "passed" if audit.passed else "failed"],
        ["mean KL from the source", formatted(total.kl.value if total else None, ".4g", " nat")],
        ["top-1 agreement", percent(total.top1.value if total else None)],
        ["probes", _probes(evidence.get(Probes))],
        ["evaluation", evaluation.label if evaluation else NOT_MEASURED],
        ["throughput", _throughput(evidence.get(Benchmark))],
        ["loops", f"{loops.loops} of {loops.texts} texts loop" if loops else NOT_MEASURED],
    ]


def _probes(report: Probes | None) -> str:
    if report is None:
        return NOT_MEASURED
    counts = ", ".join(f"{number} {verdict}" for verdict, number in report.counts.items() if number)
    covered = coverage(report.probes)
    return f"{'accepted' if report.accepted else 'not accepted'}: {counts}; {covered.sentence()}"


def _throughput(bench: Benchmark | None) -> str:
    if bench is None:
        return NOT_MEASURED
    best = max((point.tokens_per_second for point in bench.points if point.tokens_per_second), default=None)
    no_claim = f"; no claim: {bench.no_claim_because}" if bench.no_claim_because else ""
    return "no rate" if best is None else f"{best:,.0f} tokens/s{no_claim}"


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
