"""Shares and tests of them against numbers from textbooks and by counting."""

from itertools import product

import pytest

from halfbyte.validate.proportions import sign_test, wilson


@pytest.mark.parametrize(
    ("found", "count", "expected"),
    [
        (0, 64, (0.0, 0.0566)),
        (12, 64, (0.1109, 0.2996)),
        (64, 64, (0.9434, 1.0)),
        (1, 10, (0.0179, 0.4042)),  # Newcombe 1998 and every table since
        (0, 0, (0.0, 1.0)),
    ],
)
def test_wilson(found, count, expected):
    assert wilson(found, count) == pytest.approx(expected, abs=5e-5)


@pytest.mark.parametrize(("worse", "better"), [(0, 0), (1, 0), (5, 0), (4, 2), (2, 4), (0, 3)])
def test_the_sign_test_counts_all_throws(worse, better):
    throws = list(product((0, 1), repeat=worse + better))
    assert sign_test(worse, better) == sum(sum(one) >= worse for one in throws) / len(throws)
