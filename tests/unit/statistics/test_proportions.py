"""Proportions and tests of them, by their definitions."""

import math
from itertools import product

import pytest

from halfbyte.statistics.proportions import sign_test, wilson


@pytest.mark.parametrize(("found", "count"), [(0, 64), (12, 64), (64, 64), (1, 10), (1, 1), (0, 1)])
def test_wilsons_ends_are_the_shares_that_lie_two_errors_from_what_was_found(found, count):
    low, high = wilson(found, count)
    assert 0 <= low <= found / count <= high <= 1
    for end, is_limit in ((low, found == 0), (high, found == count)):
        distance = abs(end - found / count)
        expected = 0.0 if is_limit else 1.959964 * math.sqrt(end * (1 - end) / count)
        assert distance == pytest.approx(expected, abs=1e-6)


def test_the_ends_are_closed_exactly():
    assert {wilson(0, count)[0] for count in range(1, 300)} == {0.0}
    assert {wilson(count, count)[1] for count in range(1, 300)} == {1.0}


def test_of_nothing_nothing_is_known():
    assert wilson(0, 0) == (0.0, 1.0)


@pytest.mark.parametrize(("worse", "better"), [(0, 0), (1, 0), (5, 0), (4, 2), (2, 4), (0, 3)])
def test_the_sign_test_counts_all_throws(worse, better):
    throws = list(product((0, 1), repeat=worse + better))
    assert sign_test(worse, better) == sum(sum(one) >= worse for one in throws) / len(throws)
