"""Proportions and tests of them, by their definitions."""

import math
from itertools import product

import pytest

from halfbyte.statistics.proportions import sign_test, wilson


@pytest.mark.parametrize(("successes", "count"), [(0, 64), (12, 64), (64, 64), (1, 10), (1, 1), (0, 1)])
def test_wilson_bounds_solve_the_score_equation(successes, count):
    low, high = wilson(successes, count)
    assert 0 <= low <= successes / count <= high <= 1
    for end, is_limit in ((low, successes == 0), (high, successes == count)):
        distance = abs(end - successes / count)
        expected = 0.0 if is_limit else 1.959964 * math.sqrt(end * (1 - end) / count)
        assert distance == pytest.approx(expected, abs=1e-6)


def test_wilson_bounds_are_exact_at_0_and_n():
    assert {wilson(0, count)[0] for count in range(1, 300)} == {0.0}
    assert {wilson(count, count)[1] for count in range(1, 300)} == {1.0}


def test_wilson_interval_of_no_items_is_0_to_1():
    assert wilson(0, 0) == (0.0, 1.0)


@pytest.mark.parametrize(("worse", "better"), [(0, 0), (1, 0), (5, 0), (4, 2), (2, 4), (0, 3)])
def test_the_sign_test_counts_all_throws(worse, better):
    throws = list(product((0, 1), repeat=worse + better))
    assert sign_test(worse, better) == sum(sum(one) >= worse for one in throws) / len(throws)
