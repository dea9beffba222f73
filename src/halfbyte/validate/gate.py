"""From declared gates and what was measured to one verdict: may this checkpoint be published?

Nothing is read or run here. Gates say what is wanted, evidence is what the files of an output folder hold, and stages
say how each command ended. The verdict is the first that holds:

- INFEASIBLE: something could not be made or served on this machine.
- ANOMALOUS: a measurement cannot be trusted.
- REGRESSION: a quality gate failed.
- ANOMALOUS again, where a gate was declared and not measured: nobody knows.
- ACCEPT: every declared gate passed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, cast

from halfbyte.validate.probe_coverage import Coverage, coverage

Verdict = Literal["ACCEPT", "REGRESSION", "ANOMALOUS", "INFEASIBLE"]
Outcome = Literal["passed", "failed", "anomalous", "infeasible", "not measured"]

# The first outcome that any gate has decides.
_DECIDES: tuple[tuple[Outcome, Verdict], ...] = (
    ("infeasible", "INFEASIBLE"),
    ("anomalous", "ANOMALOUS"),
    ("failed", "REGRESSION"),
    ("not measured", "ANOMALOUS"),
    ("passed", "ACCEPT"),
)
# Stages whose failure says that this machine cannot do it, and the exit codes that say so: 3 is "this machine lacks
# something" everywhere; 1 is "it does not fit" where GPUs are counted; a kill from outside is mostly for memory.
_NEEDS_MACHINE: Mapping[str, tuple[int, ...]] = {"quantize": (3,), "source": (3,), "scripts": (1, 3), "serve": (1, 3)}
_MEASURED_BY = {"probe_coverage": "probe"}  # where a gate is not named after the stage that measures it
_NOT_RUN = "it has not been run"
_KILLED = 137  # as a shell says SIGKILL
_NEXT: Mapping[str, str] = {
    "quantize": "see halfbyte/release/quantize.log; `halfbyte doctor` shows what this machine has",
    "source": "see halfbyte/release/source.log; --reference-url names a source that somebody else serves",
    "scripts": "name more or larger GPUs in release.scripts, or shorten its context",
    "serve": "see halfbyte/release/serve.log; --url names a server that somebody else runs",
    "audit": "do what halfbyte/release/audit.log says, then run the same command again",
    "compare": "try scales: mse or compensated, calibrate on more data, or keep more roles as they are",
    "loops": "keep or restore more experts (halfbyte prune --restore), then ask again",
    "probe": "see halfbyte/release/probe.log and the traces in halfbyte/probe/probe.jsonl",
    "probe_coverage": "give the probes more time (release.probe.budget), then run the same command again",
    "eval": "see halfbyte/release/eval.log; more items (release.eval.limit) make the interval narrower",
    "bench": "see the engine's log, then run the same command again with --again bench",
}


@dataclass(frozen=True, slots=True)
class Found:
    """What one gate says: what was wanted, what was measured, and how that ended."""

    name: str
    wanted: str
    measured: str
    outcome: Outcome
    why: str

    def as_dict(self) -> dict[str, Any]:
        """Return it as release.json has it."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Judged:
    """The verdict, what every gate says, why, and what to do next."""

    verdict: Verdict
    gates: tuple[Found, ...]
    why: tuple[str, ...]
    next: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return it as release.json has it."""
        return {
            "verdict": self.verdict,
            "why": list(self.why),
            "next": list(self.next),
            "gates": [gate.as_dict() for gate in self.gates],
        }


class _UnreadableError(Exception):
    """Evidence that does not look as it should; the text says where."""


def judge(
    gates: Mapping[str, Any],
    evidence: Mapping[str, Mapping[str, Any]],
    stages: Mapping[str, Mapping[str, Any]] | None = None,
) -> Judged:
    """Judge gates by evidence.

    `gates` is what a recipe declares, as in {"audit": "passed", "compare": {"max_kl": 0.05}}; a gate named after a
    stage of _NEEDS_MACHINE asks that it was done. `evidence` has for each kind what its file holds; a kind that is
    missing was not measured. `stages` has for each stage its state, exit code and why, as release.json has them.
    """
    ended = stages or {}
    found = [one for name, wanted in gates.items() for one in _gate(name, wanted, evidence, ended)]
    if not found:
        return Judged("ANOMALOUS", (), ("no gate is declared, so nothing is accepted",), ("declare release.gates",))
    outcomes = {one.outcome for one in found}
    verdict: Verdict = next(verdict for outcome, verdict in _DECIDES if outcome in outcomes)
    bad = [one for outcome, _ in _DECIDES[:-1] for one in found if one.outcome == outcome]
    why = tuple(f"{one.name}: {one.why}" for one in bad) or (_all_passed(found) + _not_all_ran(gates, evidence),)
    return Judged(verdict, tuple(found), why, _next(verdict, bad, ended))


def _all_passed(found: Sequence[Found]) -> str:
    return "the one gate passed" if len(found) == 1 else f"all {len(found)} gates passed"


def _not_all_ran(gates: Mapping[str, Any], evidence: Mapping[str, Mapping[str, Any]]) -> str:
    """Say in the verdict's own sentence that probes were left out: what was not asked was not accepted."""
    if not gates.keys() & {"probe", "probe_coverage"} or "probe" not in evidence:
        return ""
    found = _coverage(evidence["probe"])
    return f"; {found.sentence()}" if len(found.ran) < found.asked else ""


def _next(verdict: Verdict, bad: Sequence[Found], stages: Mapping[str, Mapping[str, Any]]) -> tuple[str, ...]:
    """Say what to do: for a gate that could not be measured what its stage asks for, else what its kind asks for."""
    if verdict == "ACCEPT":
        return ("halfbyte publish OUT REPO",)
    said: list[str] = []
    for one in bad:
        kind = one.name.partition(".")[0]
        state = stages.get(_MEASURED_BY.get(kind, kind), {}).get("state")
        waits = one.outcome == "not measured" and state in (None, "skipped")
        said.append("run the same command again: it goes on where it ended" if waits else _NEXT.get(kind, ""))
    return tuple(dict.fromkeys(sentence for sentence in said if sentence))


def _gate(
    name: str, wanted: Any, evidence: Mapping[str, Mapping[str, Any]], stages: Mapping[str, Mapping[str, Any]]
) -> list[Found]:
    """Return what a gate says; a block of limits is a gate for each of them."""
    if name in _NEEDS_MACHINE:
        return [_done(name, str(wanted), stages.get(name))]
    limits = cast("Mapping[str, Any]", wanted).items() if isinstance(wanted, Mapping) else [("", wanted)]
    return [_measured(name, limit, value, evidence, stages) for limit, value in limits if value is not None]


def _done(name: str, wanted: str, stage: Mapping[str, Any] | None) -> Found:
    """Judge a stage that makes or serves something."""
    state = None if stage is None else stage.get("state")
    why = str((stage or {}).get("why") or "")
    if state in ("done", "kept"):
        return Found(name, wanted, "yes", "passed", "")
    if state != "failed" or stage is None:
        return Found(name, wanted, "not measured", "not measured", why or _NOT_RUN)
    code = stage.get("exit_code")
    here = code in _NEEDS_MACHINE[name] or code == _KILLED
    why = why or ("it was killed, mostly for want of memory" if code == _KILLED else f"exit code {code}")
    return Found(name, wanted, "no", "infeasible" if here else "anomalous", why)


def _measured(
    kind: str,
    limit: str,
    wanted: Any,
    evidence: Mapping[str, Mapping[str, Any]],
    stages: Mapping[str, Mapping[str, Any]],
) -> Found:
    name = f"{kind}.{limit}" if limit else kind
    sign = _SIGNS.get(limit or kind)
    shown = f"{sign} {wanted:g}" if sign and _is_number(wanted) else str(wanted)
    rule, by = _RULES.get(name), _MEASURED_BY.get(kind, kind)
    if rule is None:
        return Found(name, shown, "not measured", "not measured", "this halfbyte knows no such gate")
    if by not in evidence:
        why = str(stages.get(by, {}).get("why") or "") or _NOT_RUN
        return Found(name, shown, "not measured", "not measured", why)
    try:
        measured, outcome, why = rule(evidence[by], wanted)
    except _UnreadableError as error:
        return Found(name, shown, "unreadable", "anomalous", f"its file does not look as it should: {error}")
    return Found(name, shown, measured, outcome, why)


_SIGNS: Mapping[str, str] = {"max_kl": "<=", "min_top1": ">=", "max_rate": "<=", "probe_coverage": ">="}
_Said = tuple[str, Outcome, str]


def _audit(found: Mapping[str, Any], _: Any) -> _Said:
    passed = _value(found, "passed", bool)
    findings = [_mapping(one, "findings") for one in _value(found, "findings", list)]
    bad = [one for one in findings if one.get("level") == "bad"]
    if passed and not bad:
        return f"{sum(one.get('level') == 'good' for one in findings)} checks passed", "passed", ""
    names = ", ".join(dict.fromkeys(str(one.get("check")) for one in bad)) or "no check is named"
    first = str(bad[0].get("text", "")) if bad else ""
    return f"failed: {names}", "anomalous", f"checks failed: {names}" + (f" ({first})" if first else "")


def _max_kl(found: Mapping[str, Any], most: Any) -> _Said:
    value = _estimate(found, "kl")
    if value <= most:
        return f"{value:.4g} nat", "passed", ""
    return f"{value:.4g} nat", "failed", f"KL {value:.4g} nat is above {most:g}"


def _min_top1(found: Mapping[str, Any], least: Any) -> _Said:
    value = _estimate(found, "top1")
    if value >= least:
        return f"{value:.2%}", "passed", ""
    return f"{value:.2%}", "failed", f"the likeliest token is the same for {value:.2%}, less than {least:.2%}"


def _max_rate(found: Mapping[str, Any], most: Any) -> _Said:
    texts, loops = (_count(found, key) for key in ("texts", "loops"))
    if not texts:
        return "0 texts", "anomalous", "no text was written"
    said = f"{loops} of {texts} texts"
    if loops / texts <= most:
        return said, "passed", ""
    return said, "failed", f"{said} loop: {loops / texts:.1%} is above {most:.1%}"


def _probe(found: Mapping[str, Any], _: Any) -> _Said:
    probes = [_mapping(one, "probes") for one in _value(found, "probes", list)]
    if any(one.get("verdict") not in _PROBE_VERDICTS for one in probes):
        raise _UnreadableError("probes.verdict")
    gates = [one for one in probes if _value(one, "gate", bool)]
    names = {word: _names(one for one in gates if one.get("verdict") == word) for word in ("failed", "broken")}
    passed, covered = sum(one.get("verdict") == "passed" for one in probes), coverage(probes)
    said = ", ".join(f"{len(one)} gates {word}" for word, one in names.items() if one)
    said = f"{covered.sentence()}; {passed} passed" + (f", {said}" if said else "")
    failed = f"failed: {_some(names['failed'])}" if names["failed"] else ""
    if names["broken"]:
        why = f"without usable answers: {_some(names['broken'])}" + (f"; {failed}" if failed else "")
        return said, "anomalous", why
    if covered.unreachable:  # whatever silenced the server is not known
        why = f"the server went silent, and was not asked: {_some(_names(covered.unreachable))}"
        return said, "anomalous", why + (f"; {failed}" if failed else "")
    if failed:
        return said, "failed", failed
    if not passed:
        return said, "not measured", "every probe was skipped" if not covered.ran else "no probe passed"
    if not _value(found, "accepted", bool):
        return said, "anomalous", "probe.json does not accept what its probes say"
    left = _names(covered.over_budget)
    return said, "passed", f"left out for the budget: {', '.join(left)}" if left else ""


_PROBE_VERDICTS = ("passed", "failed", "broken", "skipped")


def _coverage(found: Mapping[str, Any]) -> Coverage:
    return coverage([_mapping(one, "probes") for one in _value(found, "probes", list)])


def _probe_coverage(found: Mapping[str, Any], least: Any) -> _Said:
    covered = _coverage(found)
    said = f"{covered.share:.0%}: {covered.sentence()}"
    if covered.ran and covered.share >= least:
        return said, "passed", ""
    left = _names([*covered.over_budget, *covered.unreachable])
    why = f"{covered.share:.1%} of the probes that can be asked here ran, less than {least:.1%}"
    return said, "not measured", why + (f"; not asked: {_some(left)}" if left else "")


def _names(probes: Iterable[Mapping[str, Any]]) -> list[str]:
    return [str(one.get("name")) for one in probes]


def _eval(found: Mapping[str, Any], wanted: Any) -> _Said:
    label = _value(found, "label", str)
    tasks = [_mapping(one, "tasks") for one in _value(found, "tasks", list)]
    if label not in _EVAL_LABELS or not tasks:
        raise _UnreadableError("label" if tasks else "tasks")
    labels = [one.get("label") for one in tasks]
    if label != next((worst for worst in _EVAL_LABELS if worst in labels), None):
        raise _UnreadableError("label")
    names = _some([str(one.get("task")) for one in tasks if one.get("label") == label])
    said = f"{label}: {names}" if label != "ACCEPT" else f"ACCEPT: {len(tasks)} of {len(tasks)} tasks"
    if label == "ANOMALOUS":
        return said, "anomalous", f"not a score: {names}"
    if label == "REGRESSION":
        return said, "failed", f"worse than the source: {names}"
    if "SCORED" in labels:
        alone = _some([str(one.get("task")) for one in tasks if one.get("label") == "SCORED"])
        return said, "not measured", f"scored, but compared with nothing: {alone}"
    if label == "INCONCLUSIVE" and wanted == "accept":
        return said, "failed", f"neither a loss nor its absence is shown: {names}"
    return said, "passed", ""


_EVAL_LABELS = ("ANOMALOUS", "REGRESSION", "INCONCLUSIVE", "SCORED", "ACCEPT")  # a suite has its worst task's


def _bench(found: Mapping[str, Any], _: Any) -> _Said:
    points = [_mapping(one, "points") for one in _value(found, "points", list)]
    if not points:
        return "no point", "not measured", "nothing was measured"
    failed, requests = (sum(_count(one, key) for one in points) for key in ("failed", "requests"))
    empty = [str(one.get("where")) for one in points if one.get("tokens_per_second") is None]
    said = f"{failed} of {requests} requests failed"
    if failed or empty:
        return said, "anomalous", said if failed else f"nothing was measured at {_some(empty)}"
    return said, "passed", ""


_RULES: Mapping[str, Callable[[Mapping[str, Any], Any], _Said]] = {
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


def _value(found: Mapping[str, Any], key: str, kind: type) -> Any:
    value = found.get(key)
    if not isinstance(value, kind):
        raise _UnreadableError(key)
    return value


def _mapping(value: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise _UnreadableError(where)
    return cast("Mapping[str, Any]", value)


def _count(found: Mapping[str, Any], key: str) -> int:
    value = found.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise _UnreadableError(key)
    return value


def _estimate(found: Mapping[str, Any], key: str) -> float:
    """Return the value of one of compare.json's numbers in all; one without a finite value was not measured well."""
    total = _mapping(found.get("total"), "total")
    value = _mapping(total.get(key), f"total.{key}").get("value")
    if not _is_number(value):
        raise _UnreadableError(f"total.{key}.value")
    return float(cast("float", value))
