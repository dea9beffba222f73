"""The arithmetic of two model cards, from their printed figures."""

import pytest

from halfbyte.errors import UsageError
from halfbyte.statistics.published import (
    POPULATION,
    SAMPLE,
    check_seeds_z,
    check_share,
    check_standard_error,
    rounded,
)
from halfbyte.statistics.seeds import welch

GSM8K, MMLU = 1319, 14042


@pytest.mark.parametrize(
    ("percent", "error", "right"),
    [("91.36", "0.77", 1205), ("91.51", "0.77", 1207), ("92.27", "0.74", 1217), ("91.21", "0.78", 1203)],
)
def test_the_nvfp4_cards_gsm8k_errors_follow(percent, error, right):
    assert check_standard_error(percent, GSM8K, error).answer == "follows"
    off_by_one = f"{float(error) + 0.01:.2f}"
    assert check_standard_error(percent, GSM8K, off_by_one).answer == "does not follow"
    assert check_share(percent, GSM8K).ranges == {f"{right} right": pytest.approx((100 * right / GSM8K,) * 2)}


@pytest.mark.parametrize(("percent", "error", "plain"), [("88.63", "0.26", 0.268), ("89.03", "0.25", 0.264)])
def test_its_mmlu_errors_are_not_plain_ones_but_may_be_pooled(percent, error, plain):
    assert check_standard_error(percent, MMLU, error).answer == "does not follow"
    group = check_standard_error(percent, MMLU, error, is_group=True)
    assert group.answer == "possible"
    assert "between subjects" in group.note
    assert group.ranges["p (1 - p)"] == pytest.approx((plain, plain), abs=5e-4)
    assert check_standard_error(percent, MMLU, "0.28", is_group=True).answer == "does not follow"


@pytest.mark.parametrize(
    ("candidate", "reference", "z"),
    [(("0.9355", "0.0049"), ("0.9396", "0.0049"), 1.02), (("0.9360", "0.0029"), ("0.9386", "0.0053"), 0.75)],
    ids=["flexible", "strict"],
)
def test_the_mxfp4_cards_z_does_not_follow(candidate, reference, z):
    found = check_seeds_z(candidate, reference, 3, "1.26")
    assert found.answer == "does not follow"
    low, high = found.ranges[SAMPLE]
    assert low < z < high < 1.1
    (mean, deviation), (other, its) = (map(float, one) for one in (reference, candidate))
    assert round(welch((mean, deviation), (other, its), 3)[0], 2) == z
    assert check_seeds_z(candidate, reference, 3, f"{z}").answer == "follows"


def test_what_would_give_it_is_named_and_makes_it_no_better():
    found = check_seeds_z(("0.9355", "0.0049"), ("0.9396", "0.0049"), 3, "1.26")
    assert found.note == f"It follows from {POPULATION}."
    assert "does not follow" in found.sentence()
    assert check_seeds_z(("0.9360", "0.0029"), ("0.9386", "0.0053"), 3, "1.26").note == ""


def test_two_of_its_means_are_no_share_of_three_runs():
    answers = {mean: check_share(mean, 3 * GSM8K).answer for mean in ("93.55", "93.60", "93.96", "93.86")}
    assert [mean for mean, answer in answers.items() if answer != "follows"] == ["93.55", "93.60"]


def test_rounding_is_read_from_the_digits():
    assert rounded("0.9360") == pytest.approx((0.93595, 0.93605), abs=1e-12)
    assert rounded("0.936") == pytest.approx((0.9355, 0.9365), abs=1e-12)
    assert rounded("12") == (11.5, 12.5)
    for text in ("z", "", "nan"):
        with pytest.raises(UsageError, match="is not a finite number"):
            rounded(text)


def test_equal_means_and_no_deviation():
    assert check_seeds_z(("0.5", "0.1"), ("0.5", "0.1"), 3, "0.00").answer == "follows"
    assert check_seeds_z(("0.5", "0.0"), ("0.9", "0.0"), 3, "999").answer == "follows"  # any z, when both may be 0
    assert check_standard_error("50", 101, "5.0").ranges["p (1 - p)"][1] == 5
