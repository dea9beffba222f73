"""ACCEPT, REGRESSION, INCONCLUSIVE: when each applies, how many items would decide, and several tasks at once."""

import numpy as np
import pytest

from halfbyte.errors import UsageError
from halfbyte.statistics import sampling
from halfbyte.statistics.pairs import paired
from halfbyte.statistics.verdicts import holm, items_needed, judge_suite, verdict


def judged(difference=0.0, lower=-0.02, upper=0.02, p_worse=0.5, items=1319, spread=0.03, margin=0.01):
    return verdict(difference, (lower, upper), p_worse, items, spread, margin)


@pytest.mark.parametrize(
    ("difference", "lower", "upper", "p_worse", "label", "significant_loss", "beyond_margin"),
    [
        (0.0, -0.009, 0.009, 0.5, "ACCEPT", False, False),
        (0.0, -0.01, 0.01, 0.5, "INCONCLUSIVE", False, False),  # a bound at the margin does not rule it out
        (-0.004, -0.007, -0.001, 0.01, "ACCEPT", True, False),
        (-0.008, -0.014, -0.002, 0.02, "REGRESSION", True, False),
        (-0.03, -0.04, -0.02, 1e-6, "REGRESSION", True, True),
        (-0.008, -0.02, 0.004, 0.2, "INCONCLUSIVE", False, False),
        (0.03, 0.02, 0.04, 1.0, "ACCEPT", False, False),
    ],
)
def test_the_three_verdicts(difference, lower, upper, p_worse, label, significant_loss, beyond_margin):
    result = judged(difference, lower, upper, p_worse)
    assert (result.label, result.significant_loss, result.beyond_margin) == (label, significant_loss, beyond_margin)
    assert result.sentence().startswith(label)
    assert (result.items_to_decide is None) == (label != "INCONCLUSIVE")


def test_a_small_significant_loss_is_accepted_and_reported():
    assert "A smaller loss is significant" in judged(-0.004, -0.007, -0.001, 0.01).sentence()
    assert "smaller loss" not in judged(0.0, -0.009, 0.009).sentence()


def test_ten_right_answers_accept_nothing():
    result = paired(np.ones(10), np.ones(10)).verdict
    assert result.label == "INCONCLUSIVE"
    assert result.items_to_decide == 268
    # And that many, all the same, do accept; one less does not.
    assert paired(np.ones(268), np.ones(268)).verdict.label == "ACCEPT"
    assert paired(np.ones(267), np.ones(267)).verdict.label == "INCONCLUSIVE"


@pytest.mark.parametrize(
    ("psi", "half_a_point", "one_point"),
    [(0.01, 2474, 619), (0.02, 4947, 1237), (0.03, 7420, 1855), (0.05, 12366, 3092), (0.1, 24731, 6183)],
)
def test_how_many_items_decide(psi, half_a_point, one_point):
    assert (items_needed(psi, 0.005), items_needed(psi, 0.01)) == (half_a_point, one_point)
    assert judged(spread=psi).items_if_no_loss == one_point


@pytest.mark.parametrize(("share", "items"), [(0.95, 23494), (0.88, 52231)])
def test_without_pairs_it_takes_many_more(share, items):
    assert items_needed(2 * share * (1 - share), 0.005) == items


def test_a_loss_as_seen_near_half_the_margin_needs_four_times_the_items():
    result = judged(difference=-0.005)
    assert result.items_if_as_observed == items_needed(0.03, 0.005) == result.items_to_decide
    assert judged(difference=-0.008).items_if_as_observed == items_needed(0.03, 0.008)  # REGRESSION is nearer
    assert judged(difference=0.005).items_to_decide == result.items_if_no_loss


def test_the_promised_number_of_items_decides(monkeypatch):
    monkeypatch.setattr(sampling, "RESAMPLES", 20)  # the bootstrap decides nothing
    # 80 % of studies with the number of items it asks for accept, when there is no loss.
    random, psi = np.random.default_rng(4), 0.03
    items = items_needed(psi)
    counts = random.multinomial(items, [psi / 2, psi / 2, 1 - psi], 600)
    labels = [paired(*_scores(better, worse, items)).verdict.label for better, worse, _ in counts]
    assert labels.count("ACCEPT") / len(labels) == pytest.approx(0.8, abs=0.05)  # 3 standard errors of 0.016


def _scores(better, worse, items):
    a, b = np.ones(items), np.ones(items)
    b[:better] = 0
    a[better : better + worse] = 0
    return a, b


@pytest.mark.parametrize("margin", [0, -0.01, 1, 5])
def test_a_margin_is_a_share(margin):
    with pytest.raises(UsageError, match="margin"):
        judged(margin=margin)


def test_holm_by_hand():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.7, 0.6]) == [1.0, 1.0]
    assert holm([]) == []
    with pytest.raises(UsageError):
        holm([1.2])


def test_one_of_ten_tasks_must_be_worse_by_more_than_chance():
    fine, bad = judged(0.0, -0.005, 0.005), judged(-0.012, -0.02, -0.004, p_worse=0.02)
    assert judge_suite({"gsm8k": bad}).label == "REGRESSION"
    suite = judge_suite({"gsm8k": bad} | {f"task {number}": fine for number in range(9)})
    assert suite.label == suite.verdicts["gsm8k"] == "INCONCLUSIVE"
    assert suite.adjusted_p["gsm8k"] == pytest.approx(0.2)
    sentence = "INCONCLUSIVE: gsm8k undecided; no significant loss after Holm's correction for 10 tasks."
    assert suite.sentence() == sentence


def test_a_suite_accepts_only_as_a_whole():
    fine, unsure, bad = judged(0.0, -0.005, 0.005), judged(), judged(-0.03, -0.04, -0.02, 1e-6)
    assert judge_suite({"a": fine, "b": fine}).label == "ACCEPT"
    assert judge_suite({"a": fine, "b": unsure}).label == "INCONCLUSIVE"
    worse = judge_suite({"a": fine, "b": unsure, "c": bad})
    assert worse.sentence() == "REGRESSION in c (p = 3e-06); p-values after Holm's correction for 3 tasks."
    with pytest.raises(UsageError, match="without tasks"):
        judge_suite({})
