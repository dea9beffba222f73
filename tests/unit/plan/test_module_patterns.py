"""Patterns of an ignore list: real ones match, and none takes long."""

import re

import pytest
from attacks.bounds import within

from halfbyte.plan.vllm_matching import broken_patterns, compiled, regex_match

NAME = "language_model.model.layers.12.mlp.shared_experts.gate_up_proj_with_a_long_name_aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
REAL = [
    "lm_head",
    ".*self_attn.*",
    ".*shared_experts.*",
    r".*mlp\.(gate|up|gate_up|down)_proj.*",
    r"model\.layers\.(0|1|2)\..*",
    r"^model\.layers\.[0-9]+\.mlp\.gate$",
    "vision_tower.*|mm_projector.*",
]
ENDLESS = [
    "((a+)+)+!",
    "(.*)*!",
    "(a|a)*!",
    "(a|aa)+$!",
    "(?:.*a){20}!",
    ".*" * 20 + "!",
    "([a-z_.0-9]+)*!",
    "(?=(a+)+!)",
    "x" * 5000,
    "(" * 500 + ")" * 500,
    "[",
    "a{99999999999}",
]


@pytest.mark.parametrize("pattern", REAL)
def test_real_patterns_match_as_engines_match(pattern):
    found = compiled(pattern)
    assert found is not None
    for name in (NAME, "lm_head", "model.layers.1.mlp.gate", "vision_tower.x"):
        assert regex_match(name, f"re:{pattern}") == (re.match(pattern, name) is not None)
    assert broken_patterns([f"re:{pattern}"]) == []


@pytest.mark.parametrize("pattern", ENDLESS)
def test_a_pattern_with_exponential_time_is_reported_and_not_run(pattern):
    with within(5):
        assert regex_match(NAME, f"re:{pattern}") is False
    assert broken_patterns([f"re:{pattern}"]) == [f"re:{pattern}"]
