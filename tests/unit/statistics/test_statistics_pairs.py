"""One model, two models, several seeds: tables computed by hand, edge cases, and messages that do not overclaim."""

import json
import math
from dataclasses import asdict

import numpy as np
import pytest

from halfbyte.errors import UsageError
from halfbyte.statistics.pairs import over_seeds, paired
from halfbyte.statistics.proportions import tango
from halfbyte.statistics.sampling import accuracy


def flips(better, worse, both, neither=0):
    """Scores of candidate and reference with this many items of each kind."""
    a = [1] * better + [0] * worse + [1] * both + [0] * neither
    b = [0] * better + [1] * worse + [1] * both + [0] * neither
    return np.array(a, float), np.array(b, float)


def test_an_accuracy_by_hand():
    result = accuracy([1, 1, 1, 0])
    assert (result.items, result.value) == (4, 0.75)
    assert result.standard_error == pytest.approx(0.25)  # sd = sqrt(0.75 / 3) = 0.5
    # Wilson: (p + z2/2n +- z sqrt(p(1-p)/n + z2/4n2)) / (1 + z2/n) with z2 = 3.841459
    assert result.interval == result.wilson == pytest.approx((0.300642, 0.954413), abs=1e-6)


@pytest.mark.parametrize("score", [0, 1])
@pytest.mark.parametrize("clusters", [None, ["x", "x", "y", "y", "z"]])
def test_all_right_and_all_wrong_still_have_a_width(score, clusters):
    result = accuracy([score] * 5, clusters)
    assert result.standard_error == 0
    assert result.interval == pytest.approx((0, 0.434482) if score == 0 else (0.565518, 1), abs=1e-6)
    assert result.interval[score] == score
    assert "Wilson" in result.sentence()


def test_one_item_has_no_standard_error():
    result = accuracy([1])
    assert result.standard_error is None
    assert result.wilson == pytest.approx((1 / (1 + 1.959963984540054**2), 1))
    assert result.standard_error is None


def test_clusters_by_hand():
    # Subjects: 2 of 2, 1 of 2, 0 of 2; the mean is 1/2, what each adds to it 1, 0, -1.
    result = accuracy([1, 1, 1, 0, 0, 0], ["a", "a", "b", "b", "c", "c"])
    assert result.clustered_error == pytest.approx(math.sqrt(3 / 2 * 2) / 6)
    assert result.clustered == (0, 1)  # 4.30 errors of 0.289 on either side
    assert (result.macro, result.macro_error) == pytest.approx((0.5, 0.5 / math.sqrt(3)))


def test_a_cluster_weighs_in_the_macro_mean_as_much_as_any_other():
    result = accuracy([1, 1, 1, 0], ["large", "large", "large", "small"])
    assert (result.value, result.macro) == (0.75, 0.5)


def test_one_cluster_counts_as_no_clusters():
    assert accuracy([1, 0, 1], ["only"] * 3) == accuracy([1, 0, 1])


def test_the_airway_table():
    # Bentur et al. 2009, 21 pairs: 7 against 1; Tango's interval is (-0.517, -0.026).
    result = paired(*flips(1, 7, 1, 12))
    assert result.tango == result.interval == pytest.approx((-0.517, -0.026), abs=5e-4)
    assert result.mcnemar_p == result.p_value == 2 * (1 + 8) / 2**8
    assert result.mcnemar_mid_p == pytest.approx(2 * (1 + 8 / 2) / 2**8)
    assert result.verdict.p_worse == (1 + 8) / 2**8
    assert paired(*flips(7, 1, 1, 12)).verdict.p_worse == 1 - 1 / 2**8
    assert (result.candidate, result.reference) == (2 / 21, 8 / 21)
    assert result.flips == 8 / 21


def test_tango_without_a_flip_by_hand():
    z2 = 1.959963984540054**2
    assert tango(0, 0, 100) == pytest.approx((-z2 / (100 + z2), z2 / (100 + z2)), abs=1e-12)
    assert tango(3, 0, 3)[1] == 1
    assert tango(0, 3, 3)[0] == -1


def test_swapping_the_models_mirrors_the_result():
    a, b = flips(5, 11, 200, 30)
    one, other = paired(a, b), paired(b, a)
    assert one.interval == pytest.approx((-other.interval[1], -other.interval[0]), abs=1e-12)
    assert (one.better, one.worse, one.p_value) == (other.worse, other.better, other.p_value)
    assert one.unpaired_z == pytest.approx(-other.unpaired_z)


def test_the_same_seed_gives_the_same_bootstrap_and_another_another():
    a, b = flips(20, 31, 200, 30)
    assert paired(a, b, seed=3) == paired(a, b, seed=3)
    assert paired(a, b, seed=3).bootstrap_seed == 3
    clusters = np.arange(len(a)) % 40
    assert paired(a, b, clusters, seed=3).bootstrap != paired(a, b, clusters, seed=4).bootstrap


def test_whole_clusters_are_resampled():
    # Forty subjects of ten items; in half of them the candidate loses all, in half it gains all.
    gains = np.repeat(np.arange(40) % 2, 10).astype(float)
    by_items, by_clusters = paired(gains, 1 - gains), paired(gains, 1 - gains, np.repeat(np.arange(40), 10))
    for kind in ("bootstrap", "interval"):
        width, narrow = (np.ptp(getattr(one, kind)) for one in (by_clusters, by_items))
        assert width == pytest.approx(math.sqrt(10) * narrow, rel=0.06)
    assert by_clusters.verdict.items_if_no_loss == pytest.approx(10 * by_items.verdict.items_if_no_loss, rel=0.05)


def test_few_flips_or_few_clusters_are_not_surer_than_items():
    a, b = flips(0, 12, 300)
    spread_evenly = np.arange(len(a)) % 12  # every cluster loses one: no spread between them at all
    assert paired(a, b, spread_evenly).interval[0] <= paired(a, b).interval[0]
    many = flips(30, 30, 300)
    two = np.arange(360) % 2
    assert np.ptp(paired(*many, two).interval) >= np.ptp(paired(*many).interval)


def test_averages_without_a_flip_prove_no_equality():
    same = np.full(300, 2 / 3)
    result = paired(same, same)
    assert (result.tango, result.mcnemar_p) == (None, None)
    assert result.interval[0] < 0 < result.interval[1]
    assert result.interval[1] == pytest.approx(1.968 * math.sqrt(2 / 301) / math.sqrt(302), rel=1e-3)
    assert "one pseudo-flip each way" in result.method


def test_rounding_of_averages_is_not_a_flip():
    thirds = np.full((3, 50), 0.1)
    result = paired(thirds.sum(axis=0), np.full(50, 0.3))  # 0.30000000000000004
    assert (result.better, result.worse) == (0, 0)


def test_seeds_by_hand():
    # Means of candidate 1/2, 1/4, 0 and of reference 1, 3/4, 3/4.
    a = [[1, 1, 0, 0], [1, 0, 0, 0], [0, 0, 0, 0]]
    b = [[1, 1, 1, 1], [1, 1, 1, 0], [1, 0, 1, 1]]
    result = over_seeds(a, b)
    assert result.candidate.by_seed == (0.5, 0.25, 0)
    assert (result.candidate.mean, result.candidate.stdev) == (0.25, 0.25)
    assert result.candidate.population_stdev == pytest.approx(0.25 * math.sqrt(2 / 3))
    assert result.z_sample == pytest.approx((0.25 - 5 / 6) / math.sqrt((0.0625 + 1 / 48) / 3))
    assert result.paired.difference == pytest.approx(0.25 - 5 / 6)
    assert result.paired.items == 4
    json.dumps(asdict(result))


def test_equal_seeds_have_no_z():
    run = np.tile(np.arange(10) % 3 == 0, (3, 1)).astype(float)
    result = over_seeds(run, run)
    assert (result.z_sample, result.z_population, result.z_p, result.welch_p) == (None,) * 4
    assert "no z" in result.sentence()


@pytest.mark.parametrize(
    ("a", "b", "what"),
    [
        ([], [], "non-empty list of numbers"),
        ([1, 0], [1], "2 scores of the candidate but 1 of the reference"),
        ([1, math.nan], [1, 0], "between 0 and 1"),
        ([1, 2], [1, 0], "between 0 and 1"),
        ([[1, 0]], [[1, 0]], "list of numbers"),
    ],
)
def test_invalid_scores_are_refused(a, b, what):
    with pytest.raises(UsageError, match=what):
        paired(a, b)


def test_seeds_of_other_shapes_are_refused():
    with pytest.raises(UsageError, match="two seeds"):
        over_seeds([[1, 0]], [[1, 0]])
    with pytest.raises(UsageError, match=r"shapes \(3, 2\) and \(2, 2\)"):
        over_seeds([[1, 0]] * 3, [[1, 0]] * 2)
    with pytest.raises(UsageError, match="between 0 and 1"):
        over_seeds([[2, 0], [0, 0]], [[1, 0], [1, 0]])  # though the average over seeds is fine
    with pytest.raises(UsageError, match="3 cluster names for 2 items"):
        paired([1, 0], [1, 0], ["a", "b", "c"])


def test_sentences():
    result = paired(*flips(8, 9, 1200, 102))
    assert result.sentence() == (
        "91.58% against 91.66%: -0.08 pp (95 % interval -0.76 to +0.59 pp, p = 1, exact McNemar, Tango); 8 of 1,319 "
        "items better, 9 worse. "
        "ACCEPT: a loss of more than 1 pp is ruled out (-0.08 pp, one-sided 95 % bound -0.63 pp)."
    )
    assert "lossless" not in result.sentence()
    assert accuracy([1, 1, 1, 0]).sentence() == "75.00% of 4 items (95 % interval 30.06% to 95.44%, Wilson)."


def test_flips_that_cancel_out_in_every_cluster_are_not_certainty():
    """Half of 60 items better and half worse, one each in every cluster: over clusters nothing varies at all."""
    a, b, clusters = np.array([0, 1] * 30), np.array([1, 0] * 30), np.repeat(np.arange(30), 2)
    result, by_items = paired(a, b, clusters), paired(a, b)
    assert result.interval == by_items.interval and np.ptp(result.interval) > 0.4
    assert result.verdict.label == "INCONCLUSIVE"
    assert "the wider of" in result.method
