"""Gates: every outcome of every gate, which one decides, and that nothing unmeasured or unreadable is accepted."""

import copy
import itertools

import pytest
from card_evidence import everything, pruned

from halfbyte.evidence.folder import KINDS
from halfbyte.evidence.probes import ProbeResult, coverage
from halfbyte.evidence.record import InvalidRecordError, decoded, plain
from halfbyte.evidence.release import StageRecord
from halfbyte.release import gate

AUDIT = {"passed": True, "findings": [{"check": "bytes", "level": "good", "text": "", "fix": ""}]}
COMPARE = {"total": {"kl": {"value": 0.02, "low": None, "high": None}, "top1": {"value": 0.95}}}
LOOPS = {"texts": 32, "loops": 1, "short": 0}
PROBE = {
    "accepted": True,
    "probes": [
        {"name": "json", "gate": True, "verdict": "passed"},
        {"name": "prose", "gate": False, "verdict": "failed"},
        {"name": "needle", "gate": True, "verdict": "skipped"},
    ],
}
EVAL = {"label": "ACCEPT", "tasks": [{"task": "mmlu", "label": "ACCEPT"}, {"task": "gsm8k", "label": "ACCEPT"}]}
BENCH = {"points": [{"failed": 0, "requests": 8, "tokens_per_second": 3.0, "label": "concurrency 1"}]}
GOOD = {"audit": AUDIT, "compare": COMPARE, "loops": LOOPS, "probe": PROBE, "eval": EVAL, "bench": BENCH}
GATES = {
    "quantize": "made",
    "serve": "answers",
    "audit": "passed",
    "compare": {"max_kl": 0.05, "min_top1": 0.9},
    "loops": {"max_rate": 0.1},
    "probe": "passed",
    "eval": "accept",
    "bench": "no_failed_requests",
}
DONE = {"quantize": {"state": "done", "exit_code": 0}, "serve": {"state": "kept", "exit_code": 0}}


WHOLE = pruned() | everything()  # each kind, as its command writes it


def changed(kind, **keys):
    return {**GOOD, kind: {**copy.deepcopy(GOOD[kind]), **keys}}


def completed(kind, held):
    """Return evidence with every field that the test does not name, as its command writes it."""
    whole = copy.deepcopy(WHOLE[kind])
    rows = {"probe": "probes", "eval": "tasks", "bench": "points", "audit": "findings"}.get(kind)
    held = dict(held)
    if rows in held and isinstance(held[rows], list):
        row = {**whole[rows][0], **({"measured": ""} if kind == "probe" else {})}
        held[rows] = [row | one if isinstance(one, dict) else one for one in held[rows]]
    if kind == "compare" and isinstance(held.get("total"), dict):
        held["total"] = whole["total"] | held["total"]
    return whole | held


def judge(gates, evidence, stages=None):
    """Judge partial evidence, read like files: what is not valid is unreadable."""
    found, unreadable = {}, {}
    for kind, held in evidence.items():
        try:
            found[kind] = KINDS[kind].of(completed(kind, held)) if kind in KINDS else held
        except InvalidRecordError as error:
            unreadable[kind] = error.what
    records = {
        name: StageRecord(**{"name": name, "command": (), "key": "", **stage}) for name, stage in (stages or {}).items()
    }
    return gate.judge(gates, found, records, unreadable)


def outcome(kind, evidence, gates=GATES):
    return [one for one in judge(gates, evidence, DONE).gates if one.name.partition(".")[0] == kind]


def test_all_gates_passed_is_accepted():
    judged = judge(GATES, GOOD, DONE)
    assert (judged.verdict, judged.why, judged.next) == (
        "ACCEPT",
        ("all 9 gates passed; 2 of 3 probes ran; 1 not applicable here",),
        ("halfbyte publish OUT REPO",),
    )
    assert {one.outcome for one in judged.gates} == {"passed"}
    assert [one.name for one in judged.gates] == [
        "quantize", "serve", "audit", "compare.max_kl", "compare.min_top1", "loops.max_rate", "probe", "eval", "bench",
    ]  # fmt: skip


def test_without_gates_nothing_is_accepted():
    assert judge({}, GOOD, DONE).verdict == "UNPROVEN"


@pytest.mark.parametrize("kind", GOOD)
def test_a_declared_gate_that_was_not_measured_is_never_accepted(kind):
    evidence = {name: held for name, held in GOOD.items() if name != kind}
    judged = judge(GATES, evidence, DONE)
    assert judged.verdict == "UNFINISHED"
    assert {one.outcome for one in outcome(kind, evidence)} == {"not run"}
    assert judged.why[0].endswith(f"gates passed; not run: {kind}")
    assert judged.next == ("run the same command again without --stop-after to resume",)
    skipped = {**DONE, kind: {"state": "skipped", "why": "serve failed"}}
    assert judge(GATES, evidence, skipped).why == judged.why  # the gate has the reason
    assert "serve failed" in [one.why for one in judge(GATES, evidence, skipped).gates]
    ran = judge(GATES, evidence, {**DONE, kind: {"state": "failed", "exit_code": 3, "why": "no answer"}})
    assert (ran.verdict, ran.why[0].endswith("no answer")) == ("UNPROVEN", True)  # it ran, and left nothing


@pytest.mark.parametrize("name", ["quantize", "serve"])
def test_a_stage_that_has_not_been_run_is_unfinished(name):
    judged = judge(GATES, GOOD, {key: one for key, one in DONE.items() if key != name})
    assert (judged.verdict, judged.why) == ("UNFINISHED", (f"8 of 9 gates passed; not run: {name}",))


CASES = [
    ("audit", {"passed": False, "findings": [{"check": "fused", "level": "bad", "text": "2 differ"}]}, "anomalous"),
    ("audit", {"findings": [{"check": "fused", "level": "bad", "text": "2 differ"}]}, "anomalous"),
    ("audit", {"passed": "yes"}, "anomalous"),
    ("audit", {"findings": None}, "anomalous"),
    ("loops", {"loops": 3}, "passed"),
    ("loops", {"loops": 4}, "failed"),
    ("loops", {"texts": 0, "loops": 0}, "anomalous"),
    ("loops", {"loops": -1}, "anomalous"),
    ("loops", {"loops": True}, "anomalous"),
    ("probe", {"probes": [{"name": "a", "gate": True, "verdict": "failed"}], "accepted": False}, "failed"),
    ("probe", {"probes": [{"name": "a", "gate": True, "verdict": "broken"}], "accepted": False}, "anomalous"),
    ("probe", {"probes": [{"name": "a", "gate": True, "verdict": "broken"},
                          {"name": "b", "gate": True, "verdict": "failed"}], "accepted": False}, "anomalous"),
    ("probe", {"probes": [{"name": "a", "gate": True, "verdict": "skipped"}], "accepted": False}, "not measured"),
    ("probe", {"probes": [], "accepted": False}, "not measured"),
    ("probe", {"accepted": False}, "anomalous"),
    ("probe", {"probes": ["a"]}, "anomalous"),
    ("probe", {"probes": [{"name": "a", "gate": True, "verdict": "passed"},
                          {"name": "b", "gate": True, "verdict": "fine"}]}, "anomalous"),
    ("probe", {"probes": [{"name": "a", "gate": True, "verdict": "passed"},
                          {"name": "b", "gate": False, "verdict": "broken"},
                          {"name": "c", "gate": True, "verdict": "skipped",
                           "measured": "the server does not answer any more, since b: refused"}]}, "anomalous"),
    ("probe", {"probes": [{"name": "a", "gate": "yes", "verdict": "passed"}]}, "anomalous"),
    ("eval", {"label": "REGRESSION", "tasks": [{"task": "mmlu", "label": "REGRESSION"}]}, "failed"),
    ("eval", {"label": "INCONCLUSIVE", "tasks": [{"task": "mmlu", "label": "INCONCLUSIVE"}]}, "unproven"),
    ("eval", {"label": "ANOMALOUS", "tasks": [{"task": "mmlu", "label": "ANOMALOUS"}]}, "anomalous"),
    ("eval", {"label": "SCORED", "tasks": [{"task": "mmlu", "label": "SCORED"}]}, "not measured"),
    ("eval", {"label": "FINE"}, "anomalous"),
    ("eval", {"label": "ACCEPT", "tasks": []}, "anomalous"),
    ("eval", {"label": "ACCEPT", "tasks": [{"task": "mmlu", "label": "REGRESSION"}]}, "anomalous"),
    ("eval", {"label": "INCONCLUSIVE", "tasks": [{"task": "mmlu", "label": "REGRESSION"}]}, "anomalous"),
    ("eval", {"label": "INCONCLUSIVE", "tasks": [{"task": "a", "label": "INCONCLUSIVE"},
                                                 {"task": "b", "label": "SCORED"}]}, "not measured"),
    ("bench", {"points": [{"failed": 1, "requests": 8, "tokens_per_second": 3.0}]}, "anomalous"),
    ("bench", {"points": [{"failed": 0, "requests": 8, "tokens_per_second": None, "label": "x"}]}, "anomalous"),
    ("bench", {"points": []}, "not measured"),
    ("bench", {"points": [{"failed": n, "requests": 10, "tokens_per_second": 3.0} for n in (5, -5)]}, "anomalous"),
    ("bench", {"points": [{"failed": None, "requests": 8}]}, "anomalous"),
]  # fmt: skip
VERDICTS = {
    "passed": "ACCEPT",
    "failed": "REGRESSION",
    "anomalous": "ANOMALOUS",
    "unproven": "UNPROVEN",
    "not measured": "UNPROVEN",
}


@pytest.mark.parametrize(("kind", "keys", "wanted"), CASES)
def test_each_outcome_and_its_verdict(kind, keys, wanted):
    evidence = changed(kind, **keys)
    (found,) = outcome(kind, evidence)
    judged = judge(GATES, evidence, DONE)
    assert (found.outcome, judged.verdict) == (wanted, VERDICTS[wanted])
    if wanted != "passed":
        assert found.why and judged.why == (f"{found.name}: {found.why}",)
        assert judged.next


@pytest.mark.parametrize(
    ("kl", "top1", "outcomes"),
    [
        (0.05, 0.9, ["passed", "passed"]),
        (0.050001, 0.9, ["failed", "passed"]),
        (0.05, 0.8999, ["passed", "failed"]),
        (1, 0, ["failed", "failed"]),
        (None, 0.95, ["anomalous", "anomalous"]),
        (float("nan"), float("inf"), ["anomalous", "anomalous"]),
        ("0.01", True, ["anomalous", "anomalous"]),
    ],
)
def test_limits_of_a_comparison(kl, top1, outcomes):
    evidence = {**GOOD, "compare": {"total": {"kl": {"value": kl}, "top1": {"value": top1}}}}
    assert [one.outcome for one in outcome("compare", evidence)] == outcomes


@pytest.mark.parametrize("broken", [{"total": None}, {"total": {"kl": {}}}, {"total": {"kl": 1, "top1": []}}])
def test_a_comparison_that_cannot_be_read(broken):
    assert {one.outcome for one in outcome("compare", {**GOOD, "compare": broken})} == {"anomalous"}


def test_a_limit_that_is_left_out_is_no_gate():
    found = outcome("compare", GOOD, {"compare": {"max_kl": 0.05, "min_top1": None}})
    assert [one.name for one in found] == ["compare.max_kl"]


@pytest.mark.parametrize(
    ("label", "accept", "no_regression"),
    [
        ("ACCEPT", "passed", "passed"),
        ("INCONCLUSIVE", "unproven", "passed"),
        ("REGRESSION", "failed", "failed"),
        ("ANOMALOUS", "anomalous", "anomalous"),
        ("SCORED", "not measured", "not measured"),
    ],
)
def test_the_two_gates_of_an_evaluation(label, accept, no_regression):
    evidence = {"eval": {"label": label, "tasks": [{"task": "mmlu", "label": label}]}}
    assert judge({"eval": "accept"}, evidence).gates[0].outcome == accept
    assert judge({"eval": "no_regression"}, evidence).gates[0].outcome == no_regression


@pytest.mark.parametrize("name", ["quantize", "source", "scripts", "serve"])
@pytest.mark.parametrize("code", [1, 2, 3, 70, 137, 143])
def test_what_this_machine_cannot_do_is_infeasible(name, code):
    stages = {name: {"state": "failed", "exit_code": code, "why": "no room"}}
    here = code in (3, 137) or (code == 1 and name in ("scripts", "serve"))
    judged = judge({name: "done"}, {}, stages)
    assert judged.verdict == ("INFEASIBLE" if here else "ANOMALOUS")
    assert judged.why == (f"{name}: no room",)
    assert judge({name: "done"}, {}, {name: {"state": "failed", "exit_code": code}}).gates[0].why


def test_which_outcome_decides():
    made = {
        "infeasible": ("serve", {"serve": {"state": "failed", "exit_code": 3}}, {}),
        "anomalous": ("audit", {}, {"audit": {"passed": False, "findings": []}}),
        "failed": ("loops", {}, {"loops": {"texts": 1, "loops": 1}}),
        "unproven": ("probe_coverage", {}, probed(1, 99, 0)),
        "not measured": ("bench", {"bench": {"state": "failed", "exit_code": 1}}, {}),
        "not run": ("eval", {}, {}),
        "passed": ("compare", {}, {"compare": GOOD["compare"]}),
    }
    verdicts = ["INFEASIBLE", "ANOMALOUS", "REGRESSION", "UNPROVEN", "UNPROVEN", "UNFINISHED", "ACCEPT"]
    for size in range(1, 5):
        for chosen in itertools.permutations(made, size):
            gates, stages, evidence = {}, {}, {}
            for one in chosen:
                name, ended, found = made[one]
                gates[name] = 0.9 if name == "probe_coverage" else GATES[name]
                stages |= ended
                evidence |= found
            worst = min(list(made).index(one) for one in chosen)
            judged = judge(gates, evidence, stages)
            assert judged.verdict == verdicts[worst], chosen
            assert len(judged.why) == max(1, sum(one != "passed" for one in chosen))
            assert ("; not run: eval" in judged.why[-1]) == ("not run" in chosen)


def probed(passed, over_budget, impossible):
    rows = [{"name": f"p{n}", "gate": True, "verdict": "passed"} for n in range(passed)]
    reason = "does not fit the budget: needs about 3 s, 1 s are left"
    rows += [{"name": f"b{n}", "gate": True, "verdict": "skipped", "measured": reason} for n in range(over_budget)]
    reason = "the server does not accept images"
    rows += [{"name": f"s{n}", "gate": True, "verdict": "skipped", "measured": reason} for n in range(impossible)]
    return {"probe": {"accepted": True, "probes": rows}}


def test_probes_that_were_left_out_are_counted_by_their_reason_and_named():
    judged = judge({"probe": "passed"}, probed(17, 38, 4))
    (found,) = judged.gates
    counted = "17 of 59 probes ran; 38 did not fit the budget, 4 not applicable here"
    assert (judged.verdict, found.outcome) == ("UNPROVEN", "unproven")
    assert found.measured == f"{counted}; 17 passed"
    assert found.why == "omitted for the time budget: b0, b1, b2, b3, b4 and 33 more"
    assert judged.next == ("raise release.probe.budget, then run the same command again",)
    judged = judge({"probe": "passed"}, probed(17, 0, 4))
    assert (judged.verdict, judged.why) == (
        "ACCEPT",
        ("the only gate passed; 17 of 21 probes ran; 4 not applicable here",),
    )
    assert judge({"audit": "passed"}, {**GOOD, **probed(17, 38, 4)}).why == ("the only gate passed",)
    (found,) = judge({"probe": "passed"}, probed(5, 0, 0)).gates
    assert (found.measured, found.why) == ("5 of 5 probes ran; 5 passed", "")


@pytest.mark.parametrize(
    ("groups", "outcome", "why"),
    [
        (["card"], "passed", ""),
        (["card", "tools"], "unproven", "omitted for the time budget: tools-gate"),
        (["prose"], "passed", ""),
        (["vision"], "unproven", "no probe of these groups ran: vision"),
        ("passed", "unproven", "omitted for the time budget: tools-gate"),
    ],
)
def test_a_gate_rests_on_the_groups_it_names(groups, outcome, why):
    budget = "does not fit the budget: needs about 3 s, 1 s are left"
    rows = [
        {"name": "a", "group": "card", "gate": True, "verdict": "passed"},
        {"name": "b", "group": "prose", "gate": True, "verdict": "passed"},
        {"name": "prose-note", "group": "prose", "gate": False, "verdict": "skipped", "measured": budget},
        {"name": "tools-gate", "group": "tools", "gate": True, "verdict": "skipped", "measured": budget},
        {"name": "v", "group": "vision", "gate": True, "verdict": "skipped", "measured": "no images"},
    ]
    gate = groups if groups == "passed" else {"groups": groups}
    (found,) = judge({"probe": gate}, {"probe": {"accepted": True, "probes": rows}}).gates
    assert (found.outcome, found.why) == (outcome, why)
    assert found.required == (groups if groups == "passed" else ", ".join(groups))


def test_coverage_counts_the_probes_of_each_group():
    def row(group, verdict, measured=""):
        whole = WHOLE["probe"]["probes"][0]
        return decoded(ProbeResult, whole | {"group": group, "verdict": verdict, "measured": measured})

    over = "does not fit the budget: needs about 3.0 s, 1.0 s of 9.0 s are left"
    silent = "the server does not answer any more, since json: no answer in 9 s"
    rows = [
        row("card", "passed"), row("card", "failed"), row("card", "skipped", over), row("tools", "skipped", silent),
        row("long", "passed"), row("long", "skipped", "the profile mini has no such questions"),
    ]  # fmt: skip
    assert coverage(rows).by_group() == "card 2 of 3, long 1 of 1, tools 0 of 1"
    assert coverage([row("", "passed")]).by_group() == ""


@pytest.mark.parametrize(
    ("ran", "over_budget", "impossible", "outcome"),
    [(9, 1, 0, "passed"), (8, 2, 0, "unproven"), (9, 1, 50, "passed"), (9, 0, 0, "passed"),
     (0, 0, 4, "unproven"), (0, 5, 0, "unproven"), (0, 0, 0, "unproven")],
)  # fmt: skip
def test_a_recipe_may_demand_that_probes_ran(ran, over_budget, impossible, outcome):
    judged = judge({"probe_coverage": 0.9}, probed(ran, over_budget, impossible), {"probe": {"state": "done"}})
    (found,) = judged.gates
    assert (found.name, found.required, found.outcome) == ("probe_coverage", ">= 0.9", outcome)
    assert (judged.verdict, bool(found.why)) == (VERDICTS[outcome], outcome != "passed")
    if outcome != "passed":
        assert judged.next == ("raise release.probe.budget, then run the same command again",)
    if over_budget:
        assert f"{over_budget} did not fit the budget" in found.measured


def test_coverage_is_measured_by_the_probes():
    judged = judge({"probe_coverage": 0.9}, {}, {"probe": {"state": "skipped", "why": "serve failed"}})
    assert (judged.verdict, judged.why) == ("UNFINISHED", ("0 of 1 gates passed; not run: probe_coverage",))
    assert judged.gates[0].why == "serve failed"
    assert judged.next == ("run the same command again without --stop-after to resume",)
    (found,) = judge({"probe_coverage": 0.9}, {"probe": {"probes": 3}}).gates
    assert found.outcome == "anomalous"


def test_an_unknown_gate_is_not_measured():
    judged = judge({"speed": {"least": 3}}, {})
    assert (judged.verdict, judged.gates[0].outcome) == ("UNPROVEN", "not measured")


def test_it_is_written_as_json_has_it():
    found = plain(judge({"loops": {"max_rate": 0.1}}, GOOD))
    assert found == {
        "verdict": "ACCEPT",
        "headline": "ACCEPT",
        "why": ["the only gate passed"],
        "next": ["halfbyte publish OUT REPO"],
        "gates": [
            {
                "name": "loops.max_rate",
                "required": "<= 0.1",
                "measured": "1 of 32 texts",
                "outcome": "passed",
                "why": "",
            }
        ],
    }
