"""Our statistics compared with scipy and statsmodels (from tests/golden/make_statistics.py)."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

from halfbyte.statistics.distributions import t_above, t_quantile
from halfbyte.statistics.pairs import over_seeds, paired
from halfbyte.statistics.proportions import (
    mcnemar,
    mcnemar_mid_p,
    sign_test,
    tango,
    wilson,
)
from halfbyte.statistics.sampling import accuracy
from halfbyte.statistics.throughput import throughput_ratio
from halfbyte.statistics.verdicts import holm, items_needed

GOLDEN = json.loads((Path(__file__).parents[2] / "golden" / "statistics.json").read_text())
SCORES, SEEDS, SPEEDS = GOLDEN["scores"], GOLDEN["seeds"], GOLDEN["throughput"]


def close(expected, digits=1e-9):
    return pytest.approx(expected, rel=digits, abs=1e-12)


@pytest.mark.parametrize(("t", "freedom", "expected"), GOLDEN["t_above"])
def test_students_tail(t, freedom, expected):
    assert t_above(t, freedom) == pytest.approx(expected, rel=1e-8)


@pytest.mark.parametrize(("share", "freedom", "expected"), GOLDEN["t_quantile"])
def test_students_quantile(share, freedom, expected):
    assert t_quantile(share, freedom) == pytest.approx(expected, rel=1e-7, abs=1e-12)


@pytest.mark.parametrize(("successes", "count", "confidence", "low", "high"), GOLDEN["wilson"])
def test_wilson(successes, count, confidence, low, high):
    assert wilson(successes, count, confidence) == close((low, high))


@pytest.mark.parametrize(("better", "worse", "expected"), GOLDEN["mcnemar"])
def test_mcnemar(better, worse, expected):
    assert mcnemar(worse, better) == mcnemar(better, worse) == close(expected)


@pytest.mark.parametrize(("better", "worse", "expected"), GOLDEN["mid_p"])
def test_mid_p(better, worse, expected):
    assert mcnemar_mid_p(worse, better) == close(expected)


@pytest.mark.parametrize(("better", "worse", "expected"), GOLDEN["sign_test"])
def test_sign_test(better, worse, expected):
    assert sign_test(worse, better) == close(expected)


@pytest.mark.parametrize(("better", "worse", "count", "confidence", "low", "high"), GOLDEN["tango"])
def test_tango(better, worse, count, confidence, low, high):
    # The golden's likelihood is maximised numerically; seven digits are what that gives.
    assert tango(better, worse, count, confidence) == pytest.approx((low, high), abs=2e-8)


@pytest.mark.parametrize(("given", "expected"), GOLDEN["holm"])
def test_holm(given, expected):
    assert holm(given) == close(expected)


@pytest.mark.parametrize(("psi", "margin", "expected"), GOLDEN["items"])
def test_items_needed(psi, margin, expected):
    assert items_needed(psi, margin) == math.ceil(expected)


def test_accuracy():
    result, clustered = accuracy(SCORES["candidate"], SCORES["clusters"]), SCORES["accuracy_clustered"]
    assert result.standard_error == close(SCORES["accuracy_error"])
    assert result.clustered_error == close(clustered["error"])
    assert result.clustered == close(clustered["interval"])
    assert result.interval == result.clustered


def test_pairs_by_clusters():
    result, expected = (
        paired(SCORES["candidate"], SCORES["reference"], SCORES["clusters"]),
        SCORES["difference_clustered"],
    )
    assert result.better + result.worse >= 20
    assert result.method == "t over 12 clusters"
    assert result.interval == close(expected["interval"])
    assert (result.verdict.lower, result.verdict.upper) == close(expected["bounds"])
    assert result.p_value == close(expected["p"], 1e-8)


def test_unpaired_z():
    result = paired(SCORES["candidate"], SCORES["reference"])
    assert [result.unpaired_z, result.unpaired_p] == close(SCORES["unpaired"])


def test_the_bootstrap_is_the_percentile_one():
    result = paired(SCORES["candidate"], SCORES["reference"])
    # Two draws of ten thousand resamples; a mean of 240 items moves in steps of 1 / 240.
    assert result.bootstrap == pytest.approx(SCORES["bootstrap"], abs=1.01 / 240)


def test_seeds():
    result, expected = over_seeds(SEEDS["candidate"], SEEDS["reference"]), SEEDS["items"]
    assert result.paired.method == "t over items"
    assert result.paired.p_value == close(expected["p"], 1e-8)
    assert result.paired.interval == close(expected["interval"])
    assert (result.paired.verdict.lower, result.paired.verdict.upper) == close(expected["bounds"])
    assert result.paired.verdict.p_worse == close(expected["p_worse"], 1e-8)
    assert [result.z_sample, result.z_p] == close(SEEDS["z"])
    assert result.welch_p == close(SEEDS["welch_p"], 1e-8)
    assert result.z_population == close(result.z_sample * math.sqrt(3 / 2))


def test_throughput():
    a, b = SPEEDS["a"], SPEEDS["b"]
    result = throughput_ratio(a, b)
    assert result.interval == close(SPEEDS["abba"])
    assert result.drift == close(math.expm1(SPEEDS["drift"]["slope"] * 15))
    assert result.drift_p == close(SPEEDS["drift"]["p"], 1e-8)
    geometric = [np.sqrt(np.prod(np.reshape(arm, (4, 2)), axis=1)).tolist() for arm in (a, b)]
    starts = throughput_ratio(np.reshape(a, (4, 2)).tolist(), np.reshape(b, (4, 2)).tolist(), "sequential")
    assert starts.interval == close(SPEEDS["sequential"])
    assert starts.ratio == close(math.exp(np.log(geometric[0]).mean() - np.log(geometric[1]).mean()))
