"""Intervals over documents: exact without variance, with about the stated coverage otherwise."""

import math

import numpy as np
import pytest

from halfbyte.compare import report
from halfbyte.compare.report import FEWEST, ratio
from halfbyte.evidence.comparison import Estimate


def _documents(random, count, sigma):
    """KL of documents with very different lengths and long-tailed means; the true mean is 1."""
    tokens = np.clip(random.lognormal(4.5, 0.8, count), 5, 512).astype(int)
    return random.gamma(tokens * 0.3, random.lognormal(-(sigma**2) / 2, sigma, count) / 0.3), tokens


def test_a_mean_is_over_tokens_not_over_documents():
    assert ratio(np.array([10.0, 0.0]), np.array([10, 90])).value == 0.1


def test_equal_documents_have_an_interval_of_zero_width():
    assert ratio(np.zeros(50), np.full(50, 7)) == Estimate(0.0, 0.0, 0.0)
    assert ratio(np.full(50, 7.0), np.full(50, 7)) == Estimate(1.0, 1.0, 1.0)


def test_few_documents_have_no_interval_and_none_have_no_number():
    above, below = np.arange(FEWEST - 1.0), np.ones(FEWEST - 1)
    assert ratio(above, below) == Estimate(float(above.mean()))
    assert math.isnan(ratio(np.zeros(0), np.zeros(0)).value)


def test_it_is_the_same_every_time_and_keeps_its_limits():
    above = np.zeros(40)
    above[:2] = 5
    result = ratio(above, np.full(40, 10), (0.0, 1.0))
    assert result == ratio(above, np.full(40, 10), (0.0, 1.0))
    assert 0.0 <= result.low < result.value < result.high <= 1.0


def test_many_documents_are_worked_on_in_parts(monkeypatch):
    random = np.random.default_rng(0)
    above, below = _documents(random, 60, 0.5)
    whole = ratio(above, below)
    monkeypatch.setattr(report, "_AT_ONCE", 60 * 37)
    parts = ratio(above, below)
    assert (parts.value, parts.low, parts.high) == pytest.approx((whole.value, whole.low, whole.high), rel=1e-12)


@pytest.mark.parametrize(("count", "sigma", "least"), [(12, 0.5, 0.87), (40, 0.5, 0.90), (150, 1.0, 0.88)])
def test_it_covers_the_true_mean(monkeypatch, count, sigma, least):
    monkeypatch.setattr(report, "RESAMPLES", 500)
    random = np.random.default_rng(7)
    trials, covered = 300, 0
    for _ in range(trials):
        result = ratio(*_documents(random, count, sigma))
        covered += result.low <= 1 <= result.high
    assert least <= covered / trials <= 0.99


def test_tokens_as_if_they_were_independent_would_be_far_too_sure():
    random = np.random.default_rng(3)
    above, below = _documents(random, 100, 1.0)
    result = ratio(above, below)
    naive = 2 * 1.96 * math.sqrt(1 / 0.3 / below.sum())  # the spread of single tokens over their root
    assert result.high - result.low > 2 * naive
