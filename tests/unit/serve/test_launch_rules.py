"""Launch rules: read strictly, compared as declared, and every rule is used."""

import itertools
from pathlib import Path

import pytest
from kimi_served import kimi

from halfbyte.errors import CheckFailedError, RecipeError, UsageError
from halfbyte.serve import settings
from halfbyte.serve.gpus import parse_gpus
from halfbyte.serve.launch import CPU, launch
from halfbyte.serve.launch_data import (
    When,
    drafts,
    engine,
    engines,
    publications,
    published,
    read_rules,
    rules,
    version_key,
)
from halfbyte.serve.launch_facts import LaunchOptions

GOOD = """\
- set: moe_backend
  to: cutlass
  when: {arch: sm_100}
  because: faster
  source: a card
"""


@pytest.mark.parametrize(
    ("text", "what", "where"),
    [
        (GOOD.replace("arch:", "arhc:"), "unknown key 'arhc'", "rules.yaml:3"),
        (GOOD.replace("  source:", "  sauce:"), "unknown key 'sauce'", "rules.yaml:5"),
        (GOOD.replace("  source: a card\n", ""), "source", "rules.yaml:1"),
        (GOOD + "  warn: look out\n", "exactly one of set, env, warn and refuse", "rules.yaml:1"),
        (GOOD.replace("  because: faster\n", ""), "a reason", "rules.yaml:1"),
        (GOOD.replace("  to: cutlass\n", ""), "a value", "rules.yaml:1"),
        (GOOD.replace("arch: sm_100", 'tp: "about 3"'), "'about 3' is not a valid bound", "rules.yaml:3"),
        ("- refuse: no\n  source: a card\n", "a refusal needs a `fix`", "rules.yaml:1"),
        (GOOD.replace("cutlass", "cutlass\n  to: marlin"), "duplicate key 'to'", "rules.yaml:3"),
    ],
)
def test_an_invalid_rule_is_reported_with_its_line(text, what, where):
    with pytest.raises(RecipeError) as caught:
        read_rules(text, "rules.yaml")
    assert what in caught.value.what
    assert caught.value.where.startswith(where)


def test_the_first_rule_that_holds_wins_and_null_is_a_decision():
    facts = {"arch": "sm_100", "engine": "vllm", "gpus": "8xB200"}
    made = read_rules(GOOD.replace("cutlass", "null") + GOOD.replace("cutlass", "marlin"), "rules.yaml")
    assert settings.choose(made, facts, engine("vllm"), {}) == []
    assert [one.value for one in settings.choose(made[1:], facts, engine("vllm"), {})] == ["marlin"]
    assert settings.choose(made[1:], {**facts, "arch": "sm_90"}, engine("vllm"), {}) == []


@pytest.mark.parametrize(
    ("condition", "fact", "holds"),
    [
        ({"version": "< 0.26"}, {"version": "0.25.9"}, True),
        ({"version": "< 0.26"}, {"version": "0.26.0"}, False),
        ({"version": ">= 0.19.2"}, {"version": "0.19.2rc1"}, False),
        ({"version": ">= 0.25"}, {"version": "0.32.0+cpu"}, True),
        ({"version": ">= 0.25"}, {"version": "latest"}, True),
        ({"kept": "<= 0.5"}, {"kept": 0.5}, True),
        ({"kept": "<= 0.5"}, {"kept": 193 / 384}, False),
        ({"kept": "<= 0.5"}, {"kept": None}, False),
        ({"tp": "> 1"}, {"tp": 1}, False),
        ({"family": "kimi*"}, {"family": "kimi-k2.6"}, True),
        ({"family": "kimi*"}, {"family": "deepseek_v3"}, False),
        ({"arch": ["sm_100", "sm_103"]}, {"arch": "sm_103"}, True),
        ({"arch": ["sm_100", "sm_103"]}, {"arch": "sm_120"}, False),
        ({"ep": False}, {"ep": False}, True),
        ({"draft": True}, {"draft": "organisation/name"}, True),
        ({"draft": True}, {"draft": None}, False),
        ({"revision": False}, {"revision": None}, True),
        ({"arch": "sm_90", "ep": True}, {"arch": "sm_90", "ep": False}, False),
    ],
)
def test_conditions_hold_for_matching_facts(condition, fact, holds):
    assert When.model_validate(condition).holds(fact) is holds


def test_versions_are_ordered():
    ordered = ["0.9", "0.15.0", "0.17.1", "0.19.2rc1", "0.19.2", "0.25", "0.32.0", "1.0", "latest"]
    assert sorted(reversed(ordered), key=version_key) == ordered


def test_engines_and_rules_speak_of_the_same_settings():
    flags = {name for row in engines().values() for name in row.flags}
    named = {rule.set for rule in rules() if rule.set}
    assert named <= flags
    never = {"load_format", "host"}  # for --set only
    assert flags - named == never
    assert {rule.unless_set for rule in rules() if rule.unless_set} <= flags
    assert all(rule.source for rule in rules())


def test_every_data_file_is_valid():
    assert set(engines()) == {"vllm", "vllm-rocm", "sglang", "atom"}
    assert {"kimi-k2.5", "kimi-k2.6", "kimi-k2.7-code"} == set(drafts())
    assert len(publications()) == 4
    with pytest.raises(UsageError) as caught:
        published("wafer-k2.6-nvfp5")
    assert caught.value.fix == "did you mean 'wafer-k2.6-nvfp4'?"


def test_every_rule_applies_to_some_launch(monkeypatch):
    """Over all machines, engines, formats and options, each rule decides at least once."""
    decided = set()
    spy_on(monkeypatch, decided)
    for machine, format, name in itertools.product(MACHINES, FORMATS, engines()):
        for options, changes in CASES:
            try:
                launch(kimi(format, **changes), parse_gpus(machine), LaunchOptions(engine=name, **options))
            except (UsageError, CheckFailedError):
                continue
    for format, options in itertools.product(("nvfp4", "bf16"), ({"emulate": True, "activations": "off"}, {})):
        try:
            launch(kimi(format), CPU, LaunchOptions(**options))
        except UsageError:
            continue
    unused = [rule for rule in rules() if id(rule) not in decided]
    assert [rule.model_dump(exclude_unset=True) for rule in unused] == []


MACHINES = (
    "8xB200",
    "8xB300",
    "8xRTX PRO 6000",
    "8xH200",
    "8xA100",
    "8xMI300X",
    "8xMI355X",
)  # one of each architecture
FORMATS = ("nvfp4", "mxfp4", "mxfp4_ct", "int4", "bf16")
SHORT = {"context": 8192}
SNAPSHOT = Path("/hub/models--a--b/snapshots") / ("3" * 40)
PINNED, UNPINNED = "a/b@" + "1" * 40, "a/b"
REMOTE = {"remote_tokenizer": True}
CASES = (
    ({"version": "0.25.0"}, {"activations": "none"}),
    ({"version": "voipmonitor-20260423", "draft": "auto", **SHORT}, {"experts": 192}),
    ({"context": 131_072}, {}),
    ({"ep": True, "concurrency": 1, **SHORT}, {}),
    ({"ep": True, **SHORT}, {"experts": 191}),
    ({"draft": "x/eagle3-mla", "tp": 4, **SHORT}, {}),
    ({"dcp": 2, "tp": 4, **SHORT}, {}),
    ({"tp": 8, **SHORT}, {}),
    ({"text_only": True, "version": "0.25.0", **SHORT}, {}),
    ({"settings": ["max_num_batched_tokens=4096"]}, {}),
    ({"version": "ngc-26.03.post1", **SHORT}, {}),
    ({"hub": PINNED, **SHORT}, REMOTE),
    ({"hub": UNPINNED, **SHORT}, REMOTE),
    ({"emulate": True, "ep": True, **SHORT}, {}),
    ({"emulate": True, "settings": ["enforce_eager=false"], **SHORT}, {}),
    ({"settings": ["moe_backend=emulation"], **SHORT}, {}),
    (SHORT, {"experts": 192, **REMOTE}),
    (SHORT, {"experts": 191}),
    (SHORT, {"uneven": True}),
    (SHORT, {"activations": "none"}),
    (SHORT, {"family": "kimi-k2-instruct"}),
    (SHORT, {"folder": SNAPSHOT, **REMOTE}),
)


def spy_on(monkeypatch, decided):
    """Record each rule that decides something: the first that holds for its setting, or a printed message."""
    real = {name: getattr(settings, name) for name in ("choose", "environment", "warnings", "refusal")}
    kinds = {"choose": "set", "environment": "env", "warnings": "warn", "refusal": "refuse"}

    def spying(name):
        def spy(made, facts, *rest):
            seen = set()
            for rule in made:
                said = getattr(rule, kinds[name])
                if said is not None and said not in seen and rule.when.holds(facts):
                    seen.add(said)
                    decided.add(id(rule))
            return real[name](made, facts, *rest)

        return spy

    for name in real:
        monkeypatch.setattr(settings, name, spying(name))
