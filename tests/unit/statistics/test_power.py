"""The chance that an equally good build passes an eval gate, and the shipped recipes."""

import json
from pathlib import Path

import numpy as np
import pytest

from halfbyte.evaluate.suites import load_suite, suite_hash, suite_names
from halfbyte.recipe.load import load_release, recipe_names
from halfbyte.statistics.pairs import judge_differences, paired
from halfbyte.statistics.power import ENOUGH, FLIP_RATE, HOPELESS, TaskSize, chance_to_pass
from halfbyte.statistics.verdicts import MARGIN, items_needed

ROOT = Path(__file__).parents[3]
GATED = [name for name in recipe_names() if "eval" in ((load_release(name) or {}).get("gates") or {})]


@pytest.mark.parametrize("name", GATED)
def test_an_equally_good_build_passes_the_gates_of_a_shipped_recipe(name):
    release = load_release(name)
    how, gate = release["eval"], release["gates"]["eval"]
    sizes = load_suite(how["suite"]).sizes(how.get("limit"))
    assert sizes
    chance = chance_to_pass(sizes, how["margin"], how.get("flip_rate", FLIP_RATE), accept=gate == "accept")
    assert chance >= ENOUGH


def test_seven_shipped_recipes_have_an_eval_gate():
    assert len(GATED) == 7


def test_the_old_margin_of_the_coding_suite_was_hopeless():
    assert chance_to_pass(load_suite("coding").sizes(None), 0.01, accept=True) < HOPELESS


def test_the_number_of_items_for_80_percent_power_gives_80_percent():
    items = items_needed(FLIP_RATE, MARGIN)
    assert 0.75 < chance_to_pass([TaskSize("a", items)], MARGIN, accept=True) < 0.85


def test_more_tasks_are_harder_to_accept_and_a_loss_is_rarely_found():
    one, two = TaskSize("a", 1300), TaskSize("b", 1300)
    assert chance_to_pass([one, two], MARGIN, accept=True) < chance_to_pass([one], MARGIN, accept=True)
    assert chance_to_pass([one, two], MARGIN, accept=False) > 0.95


def test_without_enough_items_hardly_anything_is_accepted():
    assert chance_to_pass([TaskSize("a", 20)], MARGIN, accept=True) < HOPELESS


def test_the_simulation_decides_as_the_comparison_does():
    rng = np.random.default_rng(1)
    reference = (rng.random(400) < 0.7).astype(float)
    candidate = np.where(rng.random(400) < 0.05, 1 - reference, reference)
    assert judge_differences(candidate - reference, is_binary=True) == paired(candidate, reference).verdict


@pytest.mark.parametrize("name", suite_names())
def test_the_stated_sizes_are_those_of_the_files(name):
    for task in load_suite(name).tasks:
        assert task.items is not None and (task.clusters is None) == (task.cluster is None)
        if task.folder == "./evals/tasks":
            rows = [json.loads(line) for line in (ROOT / task.datasets[0]).read_text("utf-8").splitlines()]
            assert len(rows) == task.items
            if task.cluster:
                assert len({row[task.cluster] for row in rows}) == task.clusters


def test_a_limit_counts_per_subject_in_groups_of_tasks():
    (gsm8k, mmlu), (mini,) = load_suite("kimi-card").sizes(10), load_suite("mini-choices").sizes(10)
    assert (gsm8k.items, mmlu.items, mini.items) == (10, 570, 10)


def test_the_stated_sizes_are_not_part_of_the_questions():
    suite = load_suite("kimi-card")
    tasks = [task.model_copy(update={"items": 1, "clusters": 1, "limit_by_cluster": False}) for task in suite.tasks]
    assert suite_hash(suite.model_copy(update={"tasks": tasks}), []) == suite_hash(suite, [])
