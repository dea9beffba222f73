"""Decide the verdict of a release from its declared gates, the evidence and the stage results.

This module reads no files and runs nothing. The first verdict that applies is used:

- INFEASIBLE: a stage could not run on this machine.
- ANOMALOUS: a measurement cannot be trusted.
- REGRESSION: a quality gate failed.
- UNPROVEN: a stage ran, but its results do not decide its gate: too few items, probes that did not run, no results.
- UNFINISHED: the stages of some gates have not run (--stop-after, Ctrl-C, a kill).
- ACCEPT: every declared gate passed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

from halfbyte.evidence.audit import Audit
from halfbyte.evidence.benchmark import Benchmark
from halfbyte.evidence.comparison import Comparison
from halfbyte.evidence.evaluation import WORST_FIRST, Evaluation
from halfbyte.evidence.loops import Loops
from halfbyte.evidence.probes import ProbeResult, Probes, coverage
from halfbyte.evidence.record import Record
from halfbyte.evidence.release import GateResult, Outcome, StageRecord, Verdict
from halfbyte.evidence.verdict import headline

# In order of precedence.
_DECIDES: tuple[tuple[Outcome, Verdict], ...] = (
    ("infeasible", "INFEASIBLE"),
    ("anomalous", "ANOMALOUS"),
    ("failed", "REGRESSION"),
    ("unproven", "UNPROVEN"),
    ("not measured", "UNPROVEN"),
    ("not run", "UNFINISHED"),
    ("passed", "ACCEPT"),
)
# Stages that can be infeasible on this machine, and the exit codes that mean so: 3 is a machine error; 1, of `scripts`
# and `serve`, means that the model does not fit the GPUs. SIGKILL is treated as out of memory.
_NEEDS_MACHINE: Mapping[str, tuple[int, ...]] = {"quantize": (3,), "source": (3,), "scripts": (1, 3), "serve": (1, 3)}
_MEASURED_BY = {"probe_coverage": "probe"}  # gates that are not named after their stage
_NOT_RUN = "not run"
_RESUME = "run the same command again without --stop-after to resume"
_KILLED = 137  # exit code of a shell for SIGKILL
_NEXT: Mapping[str, str] = {
    "quantize": "see halfbyte/release/quantize.log; `halfbyte doctor` checks this machine",
    "source": "see halfbyte/release/source.log, or use a running server of the source with --reference-url",
    "scripts": "use more or larger GPUs in release.scripts, or a shorter context",
    "serve": "see halfbyte/release/serve.log, or use a running server with --url",
    "audit": "fix the findings in halfbyte/release/audit.log, then run the same command again",
    "compare": "try scales: mse or gptq, calibrate on more data, or leave more roles unquantized",
    "loops": "raise prune.keep in the recipe and release into a new folder",
    "probe": "see halfbyte/release/probe.log and the traces in halfbyte/probe/probe.jsonl",
    "probe_coverage": "raise release.probe.budget, then run the same command again",
    "eval": "see halfbyte/release/eval.log; more items (release.eval.limit) narrow the interval",
    "bench": "see the engine's log, then run the same command again with --again bench",
}


@dataclass(frozen=True, slots=True)
class Judged:
    """The verdict with its gates, reasons and next steps."""

    verdict: Verdict
    gates: tuple[GateResult, ...]
    why: tuple[str, ...]
    next: tuple[str, ...]
    headline: str  # the verdict, with a note if accuracy is inconclusive


def judge(
    gates: Mapping[str, Any],
    evidence: Mapping[str, Record],
    stages: Mapping[str, StageRecord] | None = None,
    unreadable: Mapping[str, str] | None = None,
) -> Judged:
    """Judge gates by evidence.

    `gates` are the gates of the recipe, such as {"audit": "passed", "compare": {"max_kl": 0.05}}. A gate named after a
    stage in _NEEDS_MACHINE requires that stage to finish. `evidence` holds the record of each kind; a missing kind was
    not measured, or `unreadable` has the reason why its file is not evidence.
    """
    basis = _Basis(evidence, stages or {}, unreadable or {})
    results = [result for name, wanted in gates.items() for result in _gate(name, wanted, basis)]
    if not results:
        why = ("no gates are declared, so nothing can be accepted",)
        return Judged("UNPROVEN", (), why, ("declare release.gates",), "UNPROVEN")
    outcomes = {result.outcome for result in results}
    verdict: Verdict = next(verdict for outcome, verdict in _DECIDES if outcome in outcomes)
    bad = [result for outcome, _ in _DECIDES[:-1] for result in results if result.outcome == outcome]
    why = tuple(f"{result.name}: {result.why}" for result in bad if result.outcome != "not run")
    if "not run" in outcomes:
        why = (*why, _not_run(results))
    why = why or (_all_passed(results) + _skipped_probes(gates, evidence),)
    return Judged(verdict, tuple(results), why, _next(verdict, bad), headline(verdict, _evaluation(evidence)))


@dataclass(frozen=True, slots=True)
class _Basis:
    """What gates are judged by."""

    evidence: Mapping[str, Record]
    stages: Mapping[str, StageRecord]
    unreadable: Mapping[str, str]


def _evaluation(evidence: Mapping[str, Record]) -> Evaluation | None:
    record = evidence.get(Evaluation.kind)
    return record if isinstance(record, Evaluation) else None


def _all_passed(results: Sequence[GateResult]) -> str:
    return "the only gate passed" if len(results) == 1 else f"all {len(results)} gates passed"


def _not_run(results: Sequence[GateResult]) -> str:
    """Return one sentence for all gates whose stages have not run; each gate has its own reason."""
    names = list(dict.fromkeys(result.name.partition(".")[0] for result in results if result.outcome == "not run"))
    passed = sum(result.outcome == "passed" for result in results)
    return f"{passed} of {len(results)} gates passed; not run: {', '.join(names)}"


def _skipped_probes(gates: Mapping[str, Any], evidence: Mapping[str, Record]) -> str:
    """Return the end of the verdict's reason if probes were skipped."""
    report = evidence.get(Probes.kind)
    if not gates.keys() & {"probe", "probe_coverage"} or not isinstance(report, Probes):
        return ""
    covered = coverage(report.probes)
    return f"; {covered.sentence()}" if len(covered.ran) < covered.asked else ""


def _next(verdict: Verdict, bad: Sequence[GateResult]) -> tuple[str, ...]:
    """Return the next steps for the gates that did not pass."""
    if verdict == "ACCEPT":
        return ("halfbyte publish OUT REPO",)
    steps: list[str] = []
    for result in bad:
        kind = result.name.partition(".")[0]
        if kind == "probe" and result.outcome == "unproven":
            kind = "probe_coverage"
        steps.append(_RESUME if result.outcome == "not run" else _NEXT.get(kind, ""))
    return tuple(dict.fromkeys(step for step in steps if step))


def _gate(name: str, wanted: Any, basis: _Basis) -> list[GateResult]:
    """Return the results of a gate; a block of limits has one result per limit."""
    if name in _NEEDS_MACHINE:
        return [_done(name, str(wanted), basis.stages.get(name))]
    limits = wanted.items() if _is_block(wanted) else [("", wanted)]
    return [_measured(name, limit, value, basis) for limit, value in limits if value is not None]


def _is_block(wanted: Any) -> TypeGuard[Mapping[str, Any]]:
    return isinstance(wanted, Mapping)


def _done(name: str, wanted: str, stage: StageRecord | None) -> GateResult:
    """Judge a stage that builds or serves a checkpoint."""
    why = stage.why if stage else ""
    if stage is not None and stage.state in ("done", "kept"):
        return GateResult(name, wanted, "yes", "passed", "")
    if stage is None or stage.state != "failed":
        return GateResult(name, wanted, "not measured", "not run", why or _NOT_RUN)
    code = stage.exit_code
    infeasible = code in _NEEDS_MACHINE[name] or code == _KILLED
    why = why or ("killed by SIGKILL, probably out of memory" if code == _KILLED else f"exit code {code}")
    return GateResult(name, wanted, "no", "infeasible" if infeasible else "anomalous", why)


def _measured(kind: str, limit: str, wanted: Any, basis: _Basis) -> GateResult:
    name = f"{kind}.{limit}" if limit else kind
    sign = _SIGNS.get(limit or kind)
    shown = f"{sign} {wanted:g}" if sign and _is_number(wanted) else str(wanted)
    if limit == "groups":
        shown = ", ".join(wanted)
    rule, by = _RULES.get(name), _MEASURED_BY.get(kind, kind)
    if rule is None:
        return GateResult(name, shown, "not measured", "not measured", "unknown gate in this version of halfbyte")
    if by in basis.unreadable:
        return GateResult(name, shown, "unreadable", "anomalous", basis.unreadable[by])
    if by not in basis.evidence:
        stage = basis.stages.get(by)
        outcome: Outcome = "not run" if stage is None or stage.state == "skipped" else "not measured"
        return GateResult(name, shown, "not measured", outcome, (stage.why if stage else "") or _NOT_RUN)
    measured, outcome, why = rule(basis.evidence[by], wanted)
    return GateResult(name, shown, measured, outcome, why)


_SIGNS: Mapping[str, str] = {"max_kl": "<=", "min_top1": ">=", "max_rate": "<=", "probe_coverage": ">="}
_Result = tuple[str, Outcome, str]  # the measured value, the outcome and the reason


def _audit(audit: Audit, _: Any) -> _Result:
    bad = [finding for finding in audit.findings if finding.level == "bad"]
    if audit.passed and not bad:
        return f"{sum(finding.level == 'good' for finding in audit.findings)} checks passed", "passed", ""
    names = ", ".join(dict.fromkeys(finding.check for finding in bad)) or "unnamed check"
    first = bad[0].text if bad else ""
    return f"failed: {names}", "anomalous", f"checks failed: {names}" + (f" ({first})" if first else "")


def _max_kl(comparison: Comparison, most: Any) -> _Result:
    value = comparison.total.kl.value
    if value <= most:
        return f"{value:.4g} nat", "passed", ""
    return f"{value:.4g} nat", "failed", f"KL {value:.4g} nat exceeds {most:g}"


def _min_top1(comparison: Comparison, least: Any) -> _Result:
    value = comparison.total.top1.value
    if value >= least:
        return f"{value:.2%}", "passed", ""
    return f"{value:.2%}", "failed", f"top-1 agreement {value:.2%} is below {least:.2%}"


def _max_rate(report: Loops, most: Any) -> _Result:
    texts, loops = report.texts, report.loops
    if not texts:
        return "0 texts", "anomalous", "no text was generated"
    measured = f"{loops} of {texts} texts"
    if not 0 <= loops <= texts:
        return measured, "anomalous", f"impossible counts: {measured}"
    if loops / texts <= most:
        return measured, "passed", ""
    return measured, "failed", f"{measured} loop: {loops / texts:.1%} exceeds {most:.1%}"


def _probe(report: Probes, groups: Any) -> _Result:
    """Judge the probe gates. `groups` lists the groups that must have run; "passed" means all of them."""
    gates = [probe for probe in report.probes if probe.gate]
    names = {word: _names(probe for probe in gates if probe.verdict == word) for word in ("failed", "broken")}
    passed, covered = sum(probe.verdict == "passed" for probe in report.probes), coverage(report.probes)
    not_passed = ", ".join(f"{len(gated)} gates {word}" for word, gated in names.items() if gated)
    measured = f"{covered.sentence()}; {passed} passed" + (f", {not_passed}" if not_passed else "")
    failed = f"failed: {_some(names['failed'])}" if names["failed"] else ""
    if names["broken"]:
        why = f"no usable answers: {_some(names['broken'])}" + (f"; {failed}" if failed else "")
        return measured, "anomalous", why
    if covered.unreachable:
        why = f"the server stopped responding; not run: {_some(_names(covered.unreachable))}"
        return measured, "anomalous", why + (f"; {failed}" if failed else "")
    if failed:
        return measured, "failed", failed
    if not passed:
        return measured, "not measured", "every probe was skipped" if not covered.ran else "no probe passed"
    if not report.accepted:
        return measured, "anomalous", "probe.json is not accepted although its probes passed"
    named: Sequence[str] | None = None if groups == "passed" else groups
    omitted = [probe.name for probe in covered.over_budget if probe.gate and (named is None or probe.group in named)]
    if omitted:
        return measured, "unproven", f"omitted for the time budget: {_some(omitted)}"
    run = {probe.group for probe in covered.ran}
    if missing := [group for group in named or () if group not in run]:
        return measured, "unproven", f"no probe of these groups ran: {', '.join(missing)}"
    return measured, "passed", ""


def _probe_coverage(report: Probes, least: Any) -> _Result:
    covered = coverage(report.probes)
    measured = f"{covered.share:.0%}: {covered.sentence()}"
    if covered.ran and covered.share >= least:
        return measured, "passed", ""
    left = _names([*covered.over_budget, *covered.unreachable])
    why = f"{covered.share:.1%} of the applicable probes ran, less than {least:.1%}"
    return measured, "unproven", why + (f"; not run: {_some(left)}" if left else "")


def _names(probes: Iterable[ProbeResult]) -> list[str]:
    return [probe.name for probe in probes]


def _eval(report: Evaluation, wanted: Any) -> _Result:
    label, tasks = report.label, report.tasks
    labels = [task.label for task in tasks]
    worst = next((worst for worst in WORST_FIRST if worst in labels), None)
    if label != worst:
        why = f"eval.json is {label}, but its worst task is {worst}" if worst else "eval.json has no tasks"
        return "unreadable", "anomalous", why
    names = _some([task.task for task in tasks if task.label == label])
    measured = f"{label}: {names}" if label != "ACCEPT" else f"ACCEPT: {len(tasks)} of {len(tasks)} tasks"
    if label == "ANOMALOUS":
        return measured, "anomalous", f"not a valid score: {names}"
    if label == "REGRESSION":
        return measured, "failed", f"worse than the source: {names}"
    if "SCORED" in labels:
        scored = _some([task.task for task in tasks if task.label == "SCORED"])
        return measured, "not measured", f"scored without a reference: {scored}"
    if label == "INCONCLUSIVE" and wanted == "accept":
        return measured, "unproven", f"inconclusive: {names}"
    return measured, "passed", ""


def _bench(report: Benchmark, _: Any) -> _Result:
    points = report.points
    if not points:
        return "no points", "not measured", "nothing was measured"
    if any(not 0 <= point.failed <= point.requests for point in points):
        return "impossible counts", "anomalous", "failed requests are negative or more than all requests"
    failed, requests = sum(point.failed for point in points), sum(point.requests for point in points)
    empty = [point.label for point in points if point.tokens_per_second is None]
    measured = f"{failed} of {requests} requests failed"
    if failed or empty:
        return measured, "anomalous", measured if failed else f"nothing was measured at {_some(empty)}"
    return measured, "passed", ""


_RULES: Mapping[str, Callable[[Any, Any], _Result]] = {
    "audit": _audit,
    "compare.max_kl": _max_kl,
    "compare.min_top1": _min_top1,
    "loops.max_rate": _max_rate,
    "probe": _probe,
    "probe.groups": _probe,
    "probe_coverage": _probe_coverage,
    "eval": _eval,
    "bench": _bench,
}


def _some(names: Sequence[str], most: int = 5) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
