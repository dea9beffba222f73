"""Ratios of speeds: intervals with the stated coverage, and headlines only if the data supports them."""

import math

import numpy as np
import pytest

from halfbyte.errors import UsageError
from halfbyte.statistics import sampling
from halfbyte.statistics.throughput import throughput_ratio

TRUE, DRIFT, NOISE = 1.58, 0.06, 0.04
RUNS = 1000


@pytest.fixture
def few_resamples(monkeypatch):
    """Use few bootstrap resamples: only the interval is tested here."""
    monkeypatch.setattr(sampling, "RESAMPLES", 20)


def speeds(random, blocks, ratio=TRUE):
    """Throughputs over time with drift: half a slow wave with a random start."""
    time = np.arange(2 * blocks) / (2 * blocks - 1)
    drift = DRIFT * np.sin(math.pi * time + 2 * math.pi * random.random())
    machine = np.exp(drift + NOISE * random.standard_normal(2 * blocks))
    turn = np.arange(blocks)
    abba = machine[2 * turn + turn % 2] * ratio, machine[2 * turn + 1 - turn % 2]
    return abba, (machine[:blocks] * ratio, machine[blocks:])


@pytest.mark.parametrize(
    ("blocks", "one_after_the_other", "width"), [(3, 0.83, 0.47), (4, 0.76, 0.30), (6, 0.60, 0.19), (8, 0.50, 0.15)]
)
def test_taking_turns_covers_the_truth_and_one_after_the_other_does_not(
    few_resamples, blocks, one_after_the_other, width
):
    random = np.random.default_rng(blocks)
    covered, naive, widths = 0, 0, []
    for _ in range(RUNS):
        turns, halves = speeds(random, blocks)
        low, high = throughput_ratio(*turns).interval
        covered += low <= TRUE <= high
        widths.append(high - low)
        # Blocks taken for starts, which is what an interval over blocks of one start does.
        low, high = throughput_ratio(*([[block] for block in arm] for arm in halves), "sequential").interval
        naive += low <= TRUE <= high
    assert covered / RUNS == pytest.approx(0.955, abs=0.02)  # 3 standard errors
    assert np.mean(widths) == pytest.approx(width, abs=0.03)
    # The drift behind the figures of 0.83 to 0.50 is not known in detail; this one gives 0.79 to 0.45.
    assert naive / RUNS == pytest.approx(one_after_the_other, abs=0.1)


def test_a_server_against_itself_makes_headlines_as_rarely_as_promised(few_resamples):
    random = np.random.default_rng(11)
    result = [throughput_ratio(*speeds(random, 6, ratio=1.0)[0]).headline for _ in range(RUNS)]
    assert 0.02 <= sum(one is not None for one in result) / RUNS <= 0.06


def test_a_slowdown_of_30_percent_is_found_every_time(few_resamples):
    random = np.random.default_rng(12)
    result = [throughput_ratio(*speeds(random, 6, ratio=0.7)[0]).headline for _ in range(300)]
    assert all(one and one.endswith("less") for one in result)


def test_pairs_by_hand():
    a, b = [2.0, 8.0], [1.0, 2.0]  # ratios 2 and 4: the mean of their logarithms is that of 8 ** 0.5
    result = throughput_ratio(a, b)
    assert result.ratio == pytest.approx(math.sqrt(8))
    half = 12.706204736 * math.log(2) / 2  # t of one degree of freedom, sd = ln 2 / sqrt 2, over sqrt 2
    assert result.interval == pytest.approx((math.sqrt(8) * math.exp(-half), math.sqrt(8) * math.exp(half)), rel=1e-8)
    assert result.headline is None
    assert result.no_claim_because == "2 blocks per arm, 6 needed"


def test_a_headline_promises_no_more_than_its_lower_bound():
    noise = 1 + 0.01 * np.array([1, -1, 0, 0, 1, -1])
    result = throughput_ratio(1.5 * noise, np.ones(6))
    low = result.interval[0]
    percent = float(result.headline.split()[2])
    assert 1 + percent / 100 <= low < 1 + (percent + 0.1) / 100
    assert result.headline in result.sentence()
    slower = throughput_ratio(np.ones(6), 1.5 * noise)
    assert 1 - float(slower.headline.split()[2]) / 100 >= slower.interval[1]
    assert slower.headline.endswith("less")


def test_no_headline_where_the_interval_covers_one_or_something_else_forbids_it():
    noise = np.array([1.1, 0.9, 1.05, 0.95, 1.0, 1.02])
    unclear = throughput_ratio(1.01 * noise, np.ones(6))
    assert unclear.headline is None
    assert unclear.sentence().startswith("no claim: no significant difference: the interval includes 1")
    emulated = throughput_ratio(np.full(6, 2.0) + noise / 100, np.ones(6), no_claim_because="the server is emulated")
    assert emulated.headline is None
    assert emulated.sentence().startswith("no claim: the server is emulated")
    assert emulated.interval[0] > 2
    hair = throughput_ratio(1.0005 + noise / 1e5, np.ones(6))
    assert hair.interval[0] > 1
    assert hair.headline is None


@pytest.mark.parametrize("design", ["abba", "sequential"])
def test_figures_without_variance_give_no_headline(design):
    arms = ([3.0] * 6, [1.0] * 6) if design == "abba" else ([[3.0], [3.0]], [[1.0], [1.0]])
    result = throughput_ratio(*arms, design)
    assert result.headline is None
    assert "the figures have no variance" in result.sentence()


def test_drift_is_seen_and_taking_turns_is_immune_to_it():
    turn = np.arange(8)
    slower = 0.99 ** np.arange(16)
    jitter = np.random.default_rng(2).lognormal(0, 0.002, (2, 8))
    a = slower[2 * turn + turn % 2] * jitter[0] * 1.2
    b = slower[2 * turn + 1 - turn % 2] * jitter[1]
    result = throughput_ratio(a, b)
    assert result.drift_significant
    assert result.drift == pytest.approx(0.99**15 - 1, abs=0.01)
    assert "drifted by -1" in result.sentence()
    assert result.ratio == pytest.approx(1.2, rel=0.003)
    steady = throughput_ratio(jitter[0] * 1.2, jitter[1])
    assert not steady.drift_significant
    assert "drifted" not in steady.sentence()


def test_one_start_each_gives_no_interval():
    result = throughput_ratio([3.0] * 20, [1.0] * 20, "sequential")
    assert (result.interval, result.headline, result.units) == (None, None, (1, 1))
    assert "1 and 1 server starts, 2 per arm needed" in result.sentence()
    assert "not controlled" in result.sentence()


def test_starts_are_the_unit_however_many_blocks_they_have():
    random = np.random.default_rng(5)
    starts = [random.lognormal(mean, 0.001, size) for mean, size in ((0.5, 40), (0.6, 3), (0.0, 9), (0.1, 9))]
    result = throughput_ratio(starts[:2], starts[2:], "sequential")
    assert result.units == (2, 2)
    assert result.ratio == pytest.approx(math.exp(0.5), rel=0.01)
    # Welch over 0.5, 0.6 against 0.0, 0.1: error sqrt(0.005), 2 degrees of freedom, t = 4.3027.
    assert result.interval[0] == pytest.approx(math.exp(0.5 - 4.3027 * math.sqrt(0.005)), rel=0.02)
    assert "deployment variance" in result.sentence()


def test_drift_within_starts_is_seen():
    falling = (0.98 ** np.arange(8) * np.random.default_rng(3).lognormal(0, 0.002, (4, 8))).tolist()
    result = throughput_ratio(falling[:2], falling[2:], "sequential")
    assert result.drift_significant
    assert result.drift == pytest.approx(0.98**7 - 1, abs=0.01)


@pytest.mark.parametrize("design", ["abba", "sequential"])
@pytest.mark.parametrize("bad", [[], [1.0, 0.0], [1.0, -1.0], [1.0, math.nan]])
def test_a_speed_of_zero_is_refused(design, bad):
    with pytest.raises(UsageError, match="positive"):
        throughput_ratio(bad, [1.0, 1.0], design)


def test_turns_come_in_pairs_and_one_pair_has_no_interval():
    with pytest.raises(UsageError, match="are not pairs"):
        throughput_ratio([1.0, 2.0], [1.0])
    one = throughput_ratio([2.0], [1.0])
    assert (one.ratio, one.interval, one.headline) == (2, None, None)
    assert one.headline is None


def test_every_start_counts_for_drift():
    steady, falling = np.ones(8), 0.98 ** np.arange(8)
    jitter = np.random.default_rng(6).lognormal(0, 0.002, (4, 8))
    result = throughput_ratio(
        [steady * jitter[0], falling * jitter[1]], [steady * jitter[2], falling * jitter[3]], "sequential"
    )
    assert result.drift == pytest.approx(0.98**3.5 - 1, abs=0.01)  # one slope for all: half of that of half of them
