"""Summary section: the verdict, key figures and gates."""

from __future__ import annotations

from halfbyte.evidence.audit import Audit
from halfbyte.evidence.benchmark import Benchmark
from halfbyte.evidence.comparison import Comparison
from halfbyte.evidence.evaluation import Evaluation
from halfbyte.evidence.folder import Evidence
from halfbyte.evidence.loops import Loops
from halfbyte.evidence.plan import PlanSummary
from halfbyte.evidence.probes import Probes, coverage
from halfbyte.evidence.release import Release
from halfbyte.evidence.verdict import ACCEPT, headline
from halfbyte.publish.report.blocks import NOT_MEASURED, Block, Level, Say, Section, Table, formatted, missing, percent
from halfbyte.ui.units import size

_VERDICTS: dict[str, Level] = {ACCEPT: "good", "UNFINISHED": "note"}
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
        judged = [[gate.name, gate.outcome, gate.measured, gate.wanted, gate.why] for gate in release.gates]
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
