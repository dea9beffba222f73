"""How often the loop detector is wrong on texts that its limits were not chosen on."""

import json
from pathlib import Path

import pytest

pytest.importorskip("benchmarks.degeneracy.measure", reason="the labelled set lies in the repository")
from benchmarks.degeneracy.loops import loops
from benchmarks.degeneracy.measure import measured
from benchmarks.degeneracy.sound import sound

from halfbyte.validate.loops import has_loop

REAL = Path(__file__).parents[3] / "golden" / "degeneracy" / "pruned_kimi_mini.jsonl"

# The same letter to three people is a page written three times: no limit tells it from a loop.
KNOWN_TO_FAIL = {"letters"}


@pytest.mark.parametrize("told", [False, True])
def test_loops_of_the_held_out_part_are_found(told):
    found = measured(loops("held-out", 25), told=told)
    assert found["texts"] >= 600 and found["share"] >= 0.99 and found["interval"][0] >= 0.98
    assert {family for family, (hits, of) in found["families"].items() if hits < of} <= {"near", "word"}


@pytest.mark.parametrize("told", [False, True])
def test_sound_texts_of_the_held_out_part_are_left_alone(told):
    found = measured(sound("held-out", 48), told=told)
    assert found["texts"] >= 1500
    assert {family for family, (hits, _) in found["families"].items() if hits} <= KNOWN_TO_FAIL
    assert found["share"] <= 0.01


def test_real_loops_of_a_model_that_lost_its_experts():
    """Two of the twenty had only just begun where they were cut: 160 characters of a sentence, fewer than 200 ones."""
    texts = [json.loads(line) for line in REAL.read_text(encoding="utf-8").splitlines()]
    found = [(one["loops"], has_loop(one["text"])) for one in texts]
    assert sum(loops for loops, _ in found) == 20 and len(found) == 32
    assert found.count((True, True)) == 18 and found.count((False, True)) == 0
