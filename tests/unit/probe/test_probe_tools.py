"""Tool calls: a healthy server passes all probes, and each fault is found by its probe."""

import json
from collections import Counter

import pytest
from probe_setting import setting_of
from scripted_server import Said, call

from halfbyte.errors import UsageError
from halfbyte.probe.probe import Verdict
from halfbyte.probe.tool_calls import TOOLS, agreement
from halfbyte.probe.tool_cases import Case, read_cases, violation

TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
PROBES = {probe.name: probe for probe in TOOLS}


def asks(text, *cities):
    calls = [{"name": "weather", "arguments": {"city": city}} for city in cities]
    return {"messages": [{"role": "user", "content": text}], "tools": [TOOL], "calls": calls}


SECTION = {
    "cases": [
        *[asks(f"Weather in {city}?", city) for city in ("Oslo", "Rome", "Bonn", "Kyiv", "Lima", "Nice")],
        *[asks(f"Weather in {a} and {b}?", a, b) for a, b in (("Oslo", "Rome"), ("Bonn", "Kyiv"))],
        *[asks(f"Hello, I am {name}.") for name in ("Ann", "Bob", "Eve", "Kim")],
    ],
    "streamed": 8, "max_tokens": 64, "id_form": "functions.{name}:{index}",
    "least_valid": 0.99, "least_parallel": 1, "least_equal": 1, "least_f1": 0.9, "f1_margin": 0.05,
}  # fmt: skip


def right(body):
    words = body["messages"][-1]["content"].rstrip("?").split()
    cities = [word for word in words[2:] if word != "and"] if words[0] == "Weather" else []
    return Said(None if cities else "Hello!", calls=[call("weather", {"city": c}, n) for n, c in enumerate(cities)])


def changed(**faults):
    """Answer correctly except for these parts; a function changes the answer, in streams only with `streams`."""
    streams = faults.pop("streams", False)

    def say(body):
        said = right(body)
        if not said.calls or (streams and not body.get("stream")):
            return said
        for name, value in faults.items():
            setattr(said, name, value(said) if callable(value) else value)
        return said

    return say


def verdicts(tmp_path, say, **more):
    with setting_of(tmp_path, say, {"tools": SECTION}, **more) as (setting, _):
        return {name: probe.run(setting) for name, probe in PROBES.items()}


def failed(result):
    return {name for name, one in result.items() if one.verdict is Verdict.FAILED}


def test_a_healthy_server_passes_all_tool_probes(tmp_path):
    result = verdicts(tmp_path, right)
    assert {one.verdict for one in result.values()} == {Verdict.PASSED}
    assert result["tool-schema"].measured == "20 / 20 valid"  # ten whole and ten streamed
    assert result["tool-trigger"].numbers["f1"] == 1


FAULTS = {
    "not JSON": ({"calls": lambda said: [call("weather", '{"city": "Oslo')]}, "tool-schema"),
    "wrong type": ({"calls": lambda said: [call("weather", {"city": 7})]}, "tool-schema"),
    "missing": ({"calls": lambda said: [call("weather", {})]}, "tool-schema"),
    "undeclared": ({"calls": lambda said: [call("wether", {"city": "Oslo"})]}, "tool-schema"),
    "as text": ({"calls": [], "content": "<|tool_calls_section_begin|>functions.weather:0"}, "tool-markup"),
    "leaks beside": ({"content": "functions.weather:0"}, "tool-markup"),
    "leaks into reasoning": ({"reasoning": "So <|tool_call_begin|> it is."}, "tool-markup"),
    "dropped": ({"calls": [], "content": "I do not know."}, "tool-trigger"),
    "wrong finish": ({"finish": "stop"}, "tool-trigger"),
    "random ids": ({"calls": lambda said: [{**one, "id": f"chatcmpl-{n}"} for n, one in enumerate(said.calls)]},
                   "tool-ids"),
    "no ids": ({"calls": lambda said: [{**one, "id": ""} for one in said.calls]}, "tool-ids"),
    "same ids": ({"calls": lambda said: [{**one, "id": "functions.weather:0"} for one in said.calls]}, "tool-ids"),
    "one lost": ({"calls": lambda said: said.calls[:1]}, "tool-parallel"),
    "streams lose one": ({"streams": True, "calls": lambda said: said.calls[1:]}, "tool-streaming"),
    "streams end otherwise": ({"streams": True, "finish": "stop"}, "tool-streaming"),
}  # fmt: skip


@pytest.mark.parametrize(("faults", "probe"), FAULTS.values(), ids=FAULTS)
def test_each_fault_is_found(tmp_path, faults, probe):
    result = verdicts(tmp_path, changed(**faults))
    assert probe in failed(result)
    assert result[probe].excerpts
    assert result[probe].cause


def test_a_server_that_calls_where_nothing_is_wanted_loses_precision(tmp_path):
    result = verdicts(tmp_path, lambda body: Said(calls=[call("weather", {"city": "Oslo"})]))["tool-trigger"]
    assert result.verdict is Verdict.FAILED
    assert (result.numbers["precision"], result.numbers["recall"]) == (8 / 12, 1)


def test_the_threshold_is_the_self_agreement_of_the_reference(tmp_path):
    """A reference that decides randomly cannot set a higher bar than its own rate; a consistent one does."""
    seen = Counter()

    def unsteady(body):  # counts each question: requests come in any order
        question = json.dumps([body["messages"], body.get("tools")])
        seen[question] += 1
        return right(body) if seen[question] % 2 else Said("No.")

    shy = changed(calls=[], content="No.")
    result = verdicts(tmp_path, shy, against=right)["tool-trigger"]
    assert result.verdict is Verdict.FAILED
    assert result.numbers["reference_with_itself"]["f1"] == 1
    (tmp_path / "b").mkdir()
    result = verdicts(tmp_path / "b", right, against=unsteady)["tool-trigger"]
    assert result.numbers["least_f1"] < 0.95


def test_no_answers_are_broken(tmp_path):
    result = verdicts(tmp_path, lambda _: Said(status=400))
    assert {one.verdict for one in result.values()} == {Verdict.BROKEN}


def test_f1_is_counted_as_the_vendor_verifier_does():
    result = agreement([True, True, False, False, True], [True, False, True, False, True])
    assert (result.both, result.only_ours, result.only_theirs, result.neither) == (2, 1, 1, 1)
    assert (result.precision, result.recall, result.f1) == (2 / 3, 2 / 3, 2 / 3)
    assert agreement([], []).f1 == 1


def test_a_remote_schema_reference_is_neither_fetched_nor_judged():
    schema = {"type": "object", "properties": {"a": {"$ref": "http://127.0.0.1:9/none.json"}}}
    assert violation({"a": 1}, schema) is None
    assert violation([], schema) is not None
    assert violation({}, {"type": "no such type"}) is None


def test_the_vendor_verifiers_files_are_read_and_written(tmp_path):
    """Role `_input` becomes system, options travel along, and the results can be read as a recorded reference."""
    bodies = [
        {
            "messages": [{"role": "_input", "content": "Be brief."}, {"role": "user", "content": text}],
            "tools": [TOOL], "model": "theirs", "stream": True, "temperature": 0.6,
        }
        for text in ("Weather in Oslo?", "Hello.")
    ]  # fmt: skip
    file = tmp_path / "samples.jsonl"
    file.write_text("".join(json.dumps(one) + "\n" for one in bodies))
    cases = tuple(read_cases(file))
    assert all(isinstance(case, Case) and case.should_call is None for case in cases)
    with setting_of(tmp_path, right, {"tools": SECTION}, tool_cases=cases) as (setting, server):
        assert PROBES["tool-schema"].run(setting).verdict is Verdict.PASSED
        assert PROBES["tool-trigger"].run(setting).verdict is Verdict.SKIPPED
        sent = server.asked[0]
    assert [one["role"] for one in sent["messages"]] == ["system", "user"]
    assert (sent["model"], sent["temperature"], "stream" in sent) == ("m", 0.6, False)
    rows = [json.loads(line) for line in (tmp_path / "tool_calls.jsonl").read_text().splitlines()]
    assert set(rows[0]) == {
        "data_index", "request", "extra_body", "response", "status", "finish_reason", "tool_calls_valid", "last_run_at",
        "duration_ms", "hash",
    }  # fmt: skip
    assert [(row["data_index"], row["finish_reason"], row["tool_calls_valid"]) for row in rows] == [
        (1, "tool_calls", True),
        (2, "stop", None),
    ]
    recorded = tuple(read_cases(tmp_path / "tool_calls.jsonl"))
    assert [case.should_call for case in recorded] == [True, False]
    (tmp_path / "b").mkdir()
    with setting_of(tmp_path / "b", lambda _: Said("No."), {"tools": SECTION}, tool_cases=recorded) as (setting, _):
        assert PROBES["tool-trigger"].run(setting).verdict is Verdict.FAILED


@pytest.mark.parametrize(
    "line", ["{", "[]", '{"messages": []}', '{"messages": [{}], "tools": [{}]}', '{"tools": [{}]}']
)
def test_an_invalid_request_line_is_refused_with_its_number(tmp_path, line):
    file = tmp_path / "samples.jsonl"
    file.write_text(json.dumps({"messages": [{"role": "user", "content": "x"}], "tools": [TOOL]}) + f"\n\n{line}\n")
    with pytest.raises(UsageError) as caught:
        read_cases(file)
    assert caught.value.where == f"{file}:3"


@pytest.mark.parametrize("profile", ["kimi", "mini"])
def test_every_profile_has_tool_questions(tmp_path, profile):
    with setting_of(tmp_path, lambda _: Said("x"), {}, profile=profile) as (setting, _):
        assert all(probe.lacks(setting) is None and probe.cost(setting).requests > 0 for probe in TOOLS)
