"""Programs: the reference passes, wrong code fails, and no model-written code runs in this process."""

import random
import time

import pytest
from training.domains import programs
from training.output import END

ITEMS = programs.test_items(60, seed=5)


@pytest.fixture
def _one_second(monkeypatch):
    monkeypatch.setattr(programs, "SECONDS", 1)


@pytest.mark.parametrize("number", range(6))
def test_the_reference_passes_and_the_next_one_does_not(number):
    item, other = ITEMS[number], ITEMS[number + 1]
    assert programs.score(item, item.answer + END)
    assert programs.score(item, f"```python\n{item.answer}\n```{END}")
    assert not programs.score(item, other.answer + END)


@pytest.mark.parametrize(
    "body",
    ["while True: pass", "return [0] * 10**10", "raise SystemExit(0)", "return None", "f("],
)
@pytest.mark.usefixtures("_one_second")
def test_bad_code_fails_soon(body):
    item = ITEMS[0]
    start = time.monotonic()
    assert not programs.score(item, f"{item.answer.splitlines()[0]}\n    {body}")
    assert time.monotonic() - start < 4


@pytest.mark.parametrize(
    "code",
    ["import os", "from os import path", "open('x')", "().__class__", "__import__('os')", "def f(:", "x" * 10 + " \0"],
)
def test_what_no_answer_needs_is_refused_before_it_runs(code, monkeypatch):
    monkeypatch.setattr(programs.subprocess, "run", lambda *_, **__: pytest.fail("it ran"))
    assert not programs.is_harmless(code)
    assert not programs.score(ITEMS[0], code)


def test_nothing_a_model_writes_is_printed_as_passed():
    item = ITEMS[0]
    cheat = f"{item.answer.splitlines()[0]}\n    return 1\nprint('passed', end='')\nraise ValueError"
    assert not programs.score(item, cheat)


def test_tests_are_not_passed_by_a_constant():
    for item in ITEMS:
        assert len({case.rpartition(" == ")[2] for case in item.fields["tests"]}) >= programs.DIFFERENT_RESULTS


def test_training_never_shows_a_tested_body():
    rng = random.Random(3)
    tested = {item.answer.partition("\n")[2] for item in ITEMS}
    shown = {programs.train_sample(rng).messages[1]["content"].partition("\n")[2] for _ in range(5_000)}
    assert len(tested) > 50
    assert not tested & shown
