"""Summary section: the verdict, key figures and gates."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, cast

from halfbyte.evidence.fields import rows
from halfbyte.evidence.verdict import ACCEPT, headline
from halfbyte.probe.coverage import coverage
from halfbyte.publish.evidence import Evidence
from halfbyte.publish.report.blocks import NOT_MEASURED, Block, Level, Say, Section, Table, formatted, missing, percent
from halfbyte.ui.units import size

_VERDICTS: dict[str, Level] = {ACCEPT: "good", "UNFINISHED": "note"}
_OUTCOMES: dict[str, Level] = {"passed": "good", "failed": "bad", "anomalous": "bad", "infeasible": "bad"}


def summary(evidence: Evidence) -> Section:
    """Return the verdict with its gates, and the key figures."""
    release = evidence.get("release")
    blocks: list[Block] = []
    if release is None:
        blocks += [Say("No verdict yet.", "note"), missing(evidence, "release", "verdict")]
    else:
        verdict = str(release["verdict"])
        text = headline(verdict, evidence.get("eval"))
        undecided = verdict == ACCEPT and text != verdict
        blocks.append(Say(text, "note" if undecided else _VERDICTS.get(verdict, "bad")))
        blocks += [Say(str(why)) for why in release["why"]]
    blocks.append(Table("Key figures", ("figure", "value"), figures(evidence)))
    if release is not None:
        gates = release["gates"]
        judged = [[str(gate[key]) for key in ("name", "outcome", "measured", "wanted", "why")] for gate in gates]
        levels: list[Level] = [_OUTCOMES.get(str(gate["outcome"]), "note") for gate in gates]
        blocks.append(Table("Gates", ("gate", "outcome", "measured", "required", "reason"), judged, levels=levels))
    return Section("summary", "Summary", blocks)


def figures(evidence: Evidence) -> list[list[str]]:
    """Return all key figures, measured or not."""
    plan, audit, compare = evidence.get("plan"), evidence.get("audit"), evidence.get("compare")
    recipe = plan and plan.get("recipe")
    written = plan.get("write_nbytes") if plan else None
    read = plan.get("read_nbytes") if plan else None
    kl = _deep(compare, "total", "kl", "value")
    return [
        ["recipe", str(recipe["name"]) if recipe else NOT_MEASURED],
        ["description", str(recipe["description"]) if recipe else NOT_MEASURED],
        ["output size", size(int(written)) if written is not None else NOT_MEASURED],
        ["read from the source", size(int(read)) if read is not None else NOT_MEASURED],
        ["audit", NOT_MEASURED if audit is None else "passed" if audit["passed"] else "failed"],
        ["mean KL from the source", formatted(kl, ".4g", " nat")],
        ["top-1 agreement", percent(_deep(compare, "total", "top1", "value"))],
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
    no_claim = found.get("no_claim_because")
    return "no rate" if math.isnan(best) else f"{best:,.0f} tokens/s{f'; no claim: {no_claim}' if no_claim else ''}"


def _loops(evidence: Evidence) -> str:
    found = evidence.get("loops")
    return NOT_MEASURED if found is None else f"{found['loops']} of {found['texts']} texts loop"
