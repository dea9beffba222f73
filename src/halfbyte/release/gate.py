"""Decide the verdict of a release from its declared gates, the evidence and the stage results.

This module reads no files and runs nothing. The first verdict that applies is used:

- INFEASIBLE: a stage could not run on this machine.
- ANOMALOUS: a measurement cannot be trusted.
- REGRESSION: a quality gate failed.
- ANOMALOUS: a stage ran but did not measure what its gate requires.
- UNFINISHED: the stages of some gates have not run (--stop-after, Ctrl-C, a kill).
- ACCEPT: every declared gate passed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, cast

from halfbyte.evidence.verdict import Verdict, headline
from halfbyte.probe.coverage import Coverage, coverage

Outcome = Literal["passed", "failed", "anomalous", "infeasible", "not measured", "not run"]

# In order of precedence.
_DECIDES: tuple[tuple[Outcome, Verdict], ...] = (
    ("infeasible", "INFEASIBLE"),
    ("anomalous", "ANOMALOUS"),
    ("failed", "REGRESSION"),
    ("not measured", "ANOMALOUS"),
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
    "compare": "try scales: mse or compensated, calibrate on more data, or leave more roles unquantized",
    "loops": "raise prune.keep in the recipe and release into a new folder",
    "probe": "see halfbyte/release/probe.log and the traces in halfbyte/probe/probe.jsonl",
    "probe_coverage": "raise release.probe.budget, then run the same command again",
    "eval": "see halfbyte/release/eval.log; more items (release.eval.limit) narrow the interval",
    "bench": "see the engine's log, then run the same command again with --again bench",
}


@dataclass(frozen=True, slots=True)
class GateResult:
    """The result of one gate."""

    name: str
    wanted: str
    measured: str
    outcome: Outcome
    why: str

    def as_dict(self) -> dict[str, Any]:
        """Return the entry for release.json."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Judged:
    """The verdict with its gates, reasons and next steps."""

    verdict: Verdict
    gates: tuple[GateResult, ...]
    why: tuple[str, ...]
    next: tuple[str, ...]
    headline: str  # the verdict, with a note if accuracy is inconclusive

    def as_dict(self) -> dict[str, Any]:
        """Return the fields for release.json."""
        return {
            "verdict": self.verdict,
            "headline": self.headline,
            "why": list(self.why),
            "next": list(self.next),
            "gates": [gate.as_dict() for gate in self.gates],
        }


class _UnreadableError(Exception):
    """Evidence has an unexpected structure; the message is the key."""


def judge(
    gates: Mapping[str, Any],
    evidence: Mapping[str, Mapping[str, Any]],
    stages: Mapping[str, Mapping[str, Any]] | None = None,
) -> Judged:
    """Judge gates by evidence.

    `gates` are the gates of the recipe, such as {"audit": "passed", "compare": {"max_kl": 0.05}}. A gate named after a
    stage in _NEEDS_MACHINE requires that stage to finish. `evidence` holds the contents of each kind's file; a missing
    kind was not measured. `stages` holds the state, exit code and reason of each stage, as in release.json.
    """
    results = [result for name, wanted in gates.items() for result in _gate(name, wanted, evidence, stages or {})]
    if not results:
        why = ("no gates are declared, so nothing can be accepted",)
        return Judged("ANOMALOUS", (), why, ("declare release.gates",), "ANOMALOUS")
    outcomes = {result.outcome for result in results}
    verdict: Verdict = next(verdict for outcome, verdict in _DECIDES if outcome in outcomes)
    bad = [result for outcome, _ in _DECIDES[:-1] for result in results if result.outcome == outcome]
    why = tuple(f"{result.name}: {result.why}" for result in bad if result.outcome != "not run")
    if "not run" in outcomes:
        why = (*why, _not_run(results))
    why = why or (_all_passed(results) + _skipped_probes(gates, evidence),)
    return Judged(verdict, tuple(results), why, _next(verdict, bad), headline(verdict, evidence.get("eval")))


def _all_passed(results: Sequence[GateResult]) -> str:
    return "the only gate passed" if len(results) == 1 else f"all {len(results)} gates passed"


def _not_run(results: Sequence[GateResult]) -> str:
    """Return one sentence for all gates whose stages have not run; each gate has its own reason."""
    names = list(dict.fromkeys(result.name.partition(".")[0] for result in results if result.outcome == "not run"))
    passed = sum(result.outcome == "passed" for result in results)
    return f"{passed} of {len(results)} gates passed; not run: {', '.join(names)}"


def _skipped_probes(gates: Mapping[str, Any], evidence: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the end of the verdict's reason if probes were skipped."""
    if not gates.keys() & {"probe", "probe_coverage"} or "probe" not in evidence:
        return ""
    covered = _coverage(evidence["probe"])
    return f"; {covered.sentence()}" if len(covered.ran) < covered.asked else ""


def _next(verdict: Verdict, bad: Sequence[GateResult]) -> tuple[str, ...]:
    """Return the next steps for the gates that did not pass."""
    if verdict == "ACCEPT":
        return ("halfbyte publish OUT REPO",)
    steps: list[str] = []
    for result in bad:
        kind = result.name.partition(".")[0]
        steps.append(_RESUME if result.outcome == "not run" else _NEXT.get(kind, ""))
    return tuple(dict.fromkeys(step for step in steps if step))


def _gate(
    name: str, wanted: Any, evidence: Mapping[str, Mapping[str, Any]], stages: Mapping[str, Mapping[str, Any]]
) -> list[GateResult]:
    """Return the results of a gate; a block of limits has one result per limit."""
    if name in _NEEDS_MACHINE:
        return [_done(name, str(wanted), stages.get(name))]
    limits = cast("Mapping[str, Any]", wanted).items() if isinstance(wanted, Mapping) else [("", wanted)]
    return [_measured(name, limit, value, evidence, stages) for limit, value in limits if value is not None]


def _done(name: str, wanted: str, stage: Mapping[str, Any] | None) -> GateResult:
    """Judge a stage that builds or serves a checkpoint."""
    state = None if stage is None else stage.get("state")
    why = str((stage or {}).get("why") or "")
    if state in ("done", "kept"):
        return GateResult(name, wanted, "yes", "passed", "")
    if state != "failed" or stage is None:
        return GateResult(name, wanted, "not measured", "not run", why or _NOT_RUN)
    code = stage.get("exit_code")
    infeasible = code in _NEEDS_MACHINE[name] or code == _KILLED
    why = why or ("killed by SIGKILL, probably out of memory" if code == _KILLED else f"exit code {code}")
    return GateResult(name, wanted, "no", "infeasible" if infeasible else "anomalous", why)


def _measured(
    kind: str,
    limit: str,
    wanted: Any,
    evidence: Mapping[str, Mapping[str, Any]],
    stages: Mapping[str, Mapping[str, Any]],
) -> GateResult:
    name = f"{kind}.{limit}" if limit else kind
    sign = _SIGNS.get(limit or kind)
    shown = f"{sign} {wanted:g}" if sign and _is_number(wanted) else str(wanted)
    rule, by = _RULES.get(name), _MEASURED_BY.get(kind, kind)
    if rule is None:
        return GateResult(name, shown, "not measured", "not measured", "unknown gate in this version of halfbyte")
    if by not in evidence:
        stage = stages.get(by, {})
        outcome: Outcome = "not run" if stage.get("state") in (None, "skipped") else "not measured"
        return GateResult(name, shown, "not measured", outcome, str(stage.get("why") or "") or _NOT_RUN)
    try:
        measured, outcome, why = rule(evidence[by], wanted)
    except _UnreadableError as error:
        return GateResult(name, shown, "unreadable", "anomalous", f"unexpected structure in its file: {error}")
    return GateResult(name, shown, measured, outcome, why)


_SIGNS: Mapping[str, str] = {"max_kl": "<=", "min_top1": ">=", "max_rate": "<=", "probe_coverage": ">="}
_Result = tuple[str, Outcome, str]  # the measured value, the outcome and the reason


def _audit(audit: Mapping[str, Any], _: Any) -> _Result:
    passed = _value(audit, "passed", bool)
    findings = [_mapping(finding, "findings") for finding in _value(audit, "findings", list)]
    bad = [finding for finding in findings if finding.get("level") == "bad"]
    if passed and not bad:
        return f"{sum(finding.get('level') == 'good' for finding in findings)} checks passed", "passed", ""
    names = ", ".join(dict.fromkeys(str(finding.get("check")) for finding in bad)) or "unnamed check"
    first = str(bad[0].get("text", "")) if bad else ""
    return f"failed: {names}", "anomalous", f"checks failed: {names}" + (f" ({first})" if first else "")


def _max_kl(comparison: Mapping[str, Any], most: Any) -> _Result:
    value = _estimate(comparison, "kl")
    if value <= most:
        return f"{value:.4g} nat", "passed", ""
    return f"{value:.4g} nat", "failed", f"KL {value:.4g} nat exceeds {most:g}"


def _min_top1(comparison: Mapping[str, Any], least: Any) -> _Result:
    value = _estimate(comparison, "top1")
    if value >= least:
        return f"{value:.2%}", "passed", ""
    return f"{value:.2%}", "failed", f"top-1 agreement {value:.2%} is below {least:.2%}"


def _max_rate(report: Mapping[str, Any], most: Any) -> _Result:
    texts, loops = (_count(report, key) for key in ("texts", "loops"))
    if not texts:
        return "0 texts", "anomalous", "no text was generated"
    measured = f"{loops} of {texts} texts"
    if loops / texts <= most:
        return measured, "passed", ""
    return measured, "failed", f"{measured} loop: {loops / texts:.1%} exceeds {most:.1%}"


def _probe(report: Mapping[str, Any], _: Any) -> _Result:
    probes = [_mapping(probe, "probes") for probe in _value(report, "probes", list)]
    if any(probe.get("verdict") not in _PROBE_VERDICTS for probe in probes):
        raise _UnreadableError("probes.verdict")
    gates = [probe for probe in probes if _value(probe, "gate", bool)]
    names = {word: _names(probe for probe in gates if probe.get("verdict") == word) for word in ("failed", "broken")}
    passed, covered = sum(probe.get("verdict") == "passed" for probe in probes), coverage(probes)
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
    if not _value(report, "accepted", bool):
        return measured, "anomalous", "probe.json is not accepted although its probes passed"
    left = _names(covered.over_budget)
    return measured, "passed", f"omitted for the time budget: {', '.join(left)}" if left else ""


_PROBE_VERDICTS = ("passed", "failed", "broken", "skipped")


def _coverage(report: Mapping[str, Any]) -> Coverage:
    return coverage([_mapping(probe, "probes") for probe in _value(report, "probes", list)])


def _probe_coverage(report: Mapping[str, Any], least: Any) -> _Result:
    covered = _coverage(report)
    measured = f"{covered.share:.0%}: {covered.sentence()}"
    if covered.ran and covered.share >= least:
        return measured, "passed", ""
    left = _names([*covered.over_budget, *covered.unreachable])
    why = f"{covered.share:.1%} of the applicable probes ran, less than {least:.1%}"
    return measured, "not measured", why + (f"; not run: {_some(left)}" if left else "")


def _names(probes: Iterable[Mapping[str, Any]]) -> list[str]:
    return [str(probe.get("name")) for probe in probes]


def _eval(report: Mapping[str, Any], wanted: Any) -> _Result:
    label = _value(report, "label", str)
    tasks = [_mapping(task, "tasks") for task in _value(report, "tasks", list)]
    if label not in _EVAL_LABELS or not tasks:
        raise _UnreadableError("label" if tasks else "tasks")
    labels = [task.get("label") for task in tasks]
    if label != next((worst for worst in _EVAL_LABELS if worst in labels), None):
        raise _UnreadableError("label")
    names = _some([str(task.get("task")) for task in tasks if task.get("label") == label])
    measured = f"{label}: {names}" if label != "ACCEPT" else f"ACCEPT: {len(tasks)} of {len(tasks)} tasks"
    if label == "ANOMALOUS":
        return measured, "anomalous", f"not a valid score: {names}"
    if label == "REGRESSION":
        return measured, "failed", f"worse than the source: {names}"
    if "SCORED" in labels:
        scored = _some([str(task.get("task")) for task in tasks if task.get("label") == "SCORED"])
        return measured, "not measured", f"scored without a reference: {scored}"
    if label == "INCONCLUSIVE" and wanted == "accept":
        return measured, "failed", f"inconclusive: {names}"
    return measured, "passed", ""


_EVAL_LABELS = ("ANOMALOUS", "REGRESSION", "INCONCLUSIVE", "SCORED", "ACCEPT")  # worst first; a suite has its worst


def _bench(report: Mapping[str, Any], _: Any) -> _Result:
    points = [_mapping(point, "points") for point in _value(report, "points", list)]
    if not points:
        return "no points", "not measured", "nothing was measured"
    failed, requests = (sum(_count(point, key) for point in points) for key in ("failed", "requests"))
    empty = [str(point.get("where")) for point in points if point.get("tokens_per_second") is None]
    measured = f"{failed} of {requests} requests failed"
    if failed or empty:
        return measured, "anomalous", measured if failed else f"nothing was measured at {_some(empty)}"
    return measured, "passed", ""


_RULES: Mapping[str, Callable[[Mapping[str, Any], Any], _Result]] = {
    "audit": _audit,
    "compare.max_kl": _max_kl,
    "compare.min_top1": _min_top1,
    "loops.max_rate": _max_rate,
    "probe": _probe,
    "probe_coverage": _probe_coverage,
    "eval": _eval,
    "bench": _bench,
}


def _some(names: Sequence[str], most: int = 5) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _value(report: Mapping[str, Any], key: str, kind: type) -> Any:
    value = report.get(key)
    if not isinstance(value, kind):
        raise _UnreadableError(key)
    return value


def _mapping(value: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise _UnreadableError(where)
    return cast("Mapping[str, Any]", value)


def _count(report: Mapping[str, Any], key: str) -> int:
    value = report.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise _UnreadableError(key)
    return value


def _estimate(comparison: Mapping[str, Any], key: str) -> float:
    """Return a finite value from the totals of compare.json."""
    total = _mapping(comparison.get("total"), "total")
    value = _mapping(total.get(key), f"total.{key}").get("value")
    if not _is_number(value):
        raise _UnreadableError(f"total.{key}.value")
    return float(cast("float", value))
