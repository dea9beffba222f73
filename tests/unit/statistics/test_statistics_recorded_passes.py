"""Twenty comparisons of a real model with itself: forty passes over the same items, answers sampled at temperature 1.

`benchmarks/record_passes.py` recorded them: kimi-mini, 200 items of its multiple choice. Twenty neighboring pairs are
twenty A/A runs; thousands more come from the same passes, as other pairs and with arms swapped item by item.
"""

import json
import math
from pathlib import Path

import numpy as np
import pytest

from halfbyte.statistics import sampling
from halfbyte.statistics.pairs import over_seeds, paired
from halfbyte.statistics.verdicts import ALPHA

FILE = Path(__file__).parent / "recorded" / "passes_kimi-mini.jsonl"
ABOUT, *ROWS = map(json.loads, FILE.read_text().splitlines())
PASSES = np.array([[int(right) for right in row["right"]] for row in ROWS])
CLUSTERS = ABOUT["clusters"]
RUNS = 2000


@pytest.fixture(autouse=True)
def few_resamples(monkeypatch):
    """Use few bootstrap resamples: the bootstrap decides nothing here."""
    monkeypatch.setattr(sampling, "RESAMPLES", 20)


def most_alarms(comparisons: int, tail: float) -> int:
    """The most alarms of a test at the nominal level, except for a share `tail` of all sets of comparisons."""
    below = 0.0
    for alarms in range(comparisons + 1):
        below += math.comb(comparisons, alarms) * ALPHA**alarms * (1 - ALPHA) ** (comparisons - alarms)
        if below >= 1 - tail:
            return alarms
    return comparisons


def alarms(pairs, **more) -> int:
    return sum(paired(one, other, **more).verdict.label == "REGRESSION" for one, other in pairs)


def test_the_passes_are_of_one_model_and_differ_by_chance():
    assert PASSES.shape == (40, 200)
    assert set(PASSES.ravel()) == {0, 1}, "no request failed"
    assert len({row["right"] for row in ROWS}) == 40, "every pass drew other answers"
    shares = PASSES.mean(0)
    assert np.mean((shares > 0) & (shares < 1)) > 0.05, "for some items it is luck"
    assert PASSES.mean() > 0.5, "a model that knows something"


def test_twenty_comparisons_of_neighbours():
    """P(more than 4 of 20 at 5 %) is 0.26 %: the exact binomial bound."""
    pairs = list(zip(PASSES[::2], PASSES[1::2], strict=True))
    assert len(pairs) == 20 and most_alarms(20, 0.003) == 4
    assert alarms(pairs) <= 4
    assert alarms(pairs, clusters=CLUSTERS) <= 4
    assert alarms([(other, one) for one, other in pairs]) <= 4


def test_pairs_of_any_two_passes():
    """Pairs share passes, so these are not independent, and no binomial bound holds: 2 points above the level."""
    drawn = np.random.default_rng(1)
    result = 0
    for _ in range(RUNS):
        one, other = drawn.choice(40, 2, replace=False)
        result += alarms([(PASSES[one], PASSES[other])])
    assert result / RUNS <= ALPHA + 0.02
    assert result > 0, "a level of 5 % and not of 0"


def test_swapped_item_by_item_the_level_is_exact():
    """Two passes whose answers are swapped by coins are equals, whatever the model is; here alarms are independent."""
    drawn = np.random.default_rng(2)
    result = 0
    for _ in range(RUNS):
        one, other = PASSES[drawn.choice(40, 2, replace=False)]
        swap = drawn.random(PASSES.shape[1]) < 0.5
        result += alarms([(np.where(swap, other, one), np.where(swap, one, other))])
    assert most_alarms(RUNS, 0.001) == 131
    assert 0.01 * RUNS < result <= most_alarms(RUNS, 0.001)


def test_means_of_three_passes_keep_the_level():
    """Swapped item by item as above: six of forty passes at a time share so many that no binomial bound would hold."""
    drawn = np.random.default_rng(3)
    result = 0
    for _ in range(RUNS // 2):
        six = PASSES[drawn.choice(40, 6, replace=False)]
        swap = drawn.random(PASSES.shape[1]) < 0.5
        one, other = np.where(swap, six[3:], six[:3]), np.where(swap, six[:3], six[3:])
        result += over_seeds(one, other).paired.verdict.label == "REGRESSION"
    assert 0.02 * RUNS / 2 < result <= most_alarms(RUNS // 2, 0.001)


@pytest.mark.parametrize(("lost", "share_found"), [(0.10, 0.5), (0.20, 0.99)])
def test_a_loss_that_was_put_in_is_found(lost, share_found):
    """Of the right answers of one pass so many are made wrong, at random: a real difference on the same items."""
    drawn = np.random.default_rng(4)
    result = 0
    for _ in range(400):
        one, other = PASSES[drawn.choice(40, 2, replace=False)]
        worse = np.where(drawn.random(one.shape) < lost, 0, one)
        result += alarms([(worse, other)])
    assert result / 400 >= share_found


def test_twenty_comparisons_with_a_loss_of_a_fifth_all_find_it():
    drawn = np.random.default_rng(5)
    pairs = [
        (np.where(drawn.random(200) < 0.2, 0, one), other) for one, other in zip(PASSES[::2], PASSES[1::2], strict=True)
    ]
    assert alarms(pairs) >= 19
