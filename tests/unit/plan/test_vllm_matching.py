"""Our matchers compared with vLLM's own functions, whose results are in golden/vllm_matching.json."""

import json
from pathlib import Path

import pytest
from vllm_cases import FAMILIES, METHODS, cases

from halfbyte.families.registry import family_of
from halfbyte.plan.vllm_matching import Block, engine_modules, ignored, quantizes

GOLDEN = Path(__file__).parents[2] / "golden" / "vllm_matching.json"
ANSWERS = json.loads(GOLDEN.read_text())["families"]
LETTERS = {True: "i", False: "q", None: "!"}


def modules_of(family):
    roles = {part: role for _, _, role, parts in ANSWERS[family]["modules"] for part in parts}
    return engine_modules(family_of({"model_type": family}), roles)


def differences(theirs, ours, modules):
    assert len(theirs) == len(ours) == len(modules)
    return [f"{m.name}: vLLM {a}, halfbyte {b}" for m, a, b in zip(modules, theirs, ours, strict=True) if a != b]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("family", FAMILIES)
def test_lists_hold_back_what_vllm_says(family, method):
    modules, answers = modules_of(family), ANSWERS[family]
    wrong = []
    for patterns, theirs in zip(answers["lists"][method], answers["verdicts"][method], strict=True):
        block = Block(method, "", tuple(patterns), ("Linear",), static_inputs=False)
        ours = "".join(LETTERS[ignored(module, block)] for module in modules)
        wrong += [f"{str(patterns)[:120]}: {line}" for line in differences(theirs, ours, modules)]
    assert wrong == []


@pytest.mark.parametrize("family", FAMILIES)
def test_groups_take_what_vllm_says(family):
    modules = [module for module in modules_of(family) if module.role not in ("vision", "projector")]
    wrong = []
    for targets, theirs in zip(ANSWERS[family]["targets"], ANSWERS[family]["schemes"], strict=True):
        block = Block("compressed-tensors", "", (), tuple(targets), static_inputs=False)
        verdicts = [quantizes(module, block) for module in modules]
        ours = "".join("!" if verdict is None else "q" if verdict else "i" for verdict in verdicts)
        wrong += [f"{targets}: {line}" for line in differences(theirs, ours, modules)]
    assert wrong == []


def test_the_answers_are_worth_something():
    """For each method: lists that exclude nothing, some that exclude all, and some that are rejected."""
    for method in METHODS:
        letters = {letter for family in ANSWERS.values() for text in family["verdicts"][method] for letter in text}
        assert letters == {"q", "i", "!"}, method


def test_vllm_was_asked_what_we_would_ask_today():
    """A recipe with a changed list, or a renamed module, must be recorded again."""
    keys = ("modules", "lists", "targets")
    asked = {family: {key: answers[key] for key in keys} for family, answers in ANSWERS.items()}
    assert json.loads(json.dumps(cases())) == asked, "run make_vllm_matching.py again"
