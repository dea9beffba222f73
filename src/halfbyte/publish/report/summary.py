"""The first thing to read: the verdict, and the figures that it rests on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, cast

from halfbyte.publish.card.reading import rows
from halfbyte.publish.evidence import Evidence
from halfbyte.publish.report.blocks import NOT_MEASURED, Block, Level, Say, Section, Table, missing, percent, told
from halfbyte.terminal.units import size
from halfbyte.validate.probe_coverage import coverage

_OUTCOMES: dict[str, Level] = {"passed": "good", "failed": "bad", "anomalous": "bad", "infeasible": "bad"}


def summary(evidence: Evidence) -> Section:
    """Return the verdict with its gates, and the key figures."""
    release = evidence.get("release")
    blocks: list[Block] = []
    if release is None:
        blocks += [Say("No verdict yet.", "note"), missing(evidence, "release", "the verdict")]
    else:
        blocks.append(Say(str(release["verdict"]), "good" if release["verdict"] == "ACCEPT" else "bad"))
        blocks += [Say(str(why)) for why in release["why"]]
        blocks += [Say(f"Next: {step}") for step in release["next"]]
    blocks.append(Table("Key figures", ("figure", "value"), figures(evidence)))
    if release is not None:
        gates = release["gates"]
        judged = [[str(gate[key]) for key in ("name", "outcome", "measured", "wanted", "why")] for gate in gates]
        levels: list[Level] = [_OUTCOMES.get(str(gate["outcome"]), "note") for gate in gates]
        blocks.append(Table("Gates", ("gate", "outcome", "measured", "wanted", "why"), judged, levels=levels))
    return Section("summary", "Summary", blocks)


def figures(evidence: Evidence) -> list[list[str]]:
    """Return the figures by name; each is there, measured or not."""
    plan, audit, compare = evidence.get("plan"), evidence.get("audit"), evidence.get("compare")
    recipe = plan and plan.get("recipe")
    written = plan.get("write_nbytes") if plan else None
    read = plan.get("read_nbytes") if plan else None
    kl = _deep(compare, "total", "kl", "value")
    return [
        ["recipe", str(recipe["name"]) if recipe else NOT_MEASURED],
        ["what it makes", str(recipe["description"]) if recipe else NOT_MEASURED],
        ["size of the shards", size(int(written)) if written is not None else NOT_MEASURED],
        ["read of the source", size(int(read)) if read is not None else NOT_MEASURED],
        ["audit", NOT_MEASURED if audit is None else "passed" if audit["passed"] else "failed"],
        ["mean KL to the source", told(kl, ".4g", " nat")],
        ["same likeliest token", percent(_deep(compare, "total", "top1", "value"))],
        ["probes", _probes(evidence)],
        ["evaluation", str((evidence.get("eval") or {}).get("label", NOT_MEASURED))],
        ["throughput", _throughput(evidence)],
        ["loops", _loops(evidence)],
    ]


def _deep(found: Any, *keys: str) -> Any:
    for key in keys:
        found = cast("dict[str, Any]", found).get(key) if isinstance(found, dict) else None
    return found


def _probes(evidence: Evidence) -> str:
    found = evidence.get("probe")
    if found is None:
        return NOT_MEASURED
    counts = ", ".join(f"{number} {verdict}" for verdict, number in found["counts"].items() if number)
    covered = coverage(rows(found, "probes"))
    return f"{'accepted' if found['accepted'] else 'not accepted'}: {counts}; {covered.sentence()}"


def _throughput(evidence: Evidence) -> str:
    found = evidence.get("bench")
    if found is None:
        return NOT_MEASURED
    rates: Sequence[Any] = [point.get("tokens_per_second") for point in found["points"]]
    best = max((float(rate) for rate in rates if rate), default=math.nan)
    refused = found.get("no_claim_because")
    return (
        "no rate" if math.isnan(best) else f"{best:,.0f} tokens a second{f'; no claim: {refused}' if refused else ''}"
    )


def _loops(evidence: Evidence) -> str:
    found = evidence.get("loops")
    return NOT_MEASURED if found is None else f"{found['loops']} of {found['texts']} texts loop"
