"""Max-min coverage, compared with all possible sets."""

import itertools

import numpy as np
import pytest
from expert_stats import router
from hypothesis import given, settings
from hypothesis import strategies as st

from halfbyte.prune.selection import best, best_shares, covered, least_bound, max_min


def made(seed, experts=8, domains=3):
    return np.random.default_rng(seed).lognormal(0, 1, (experts, domains))


def allowed(experts, count, shape, first=()):
    for kept in itertools.combinations(range(experts), count):
        groups = [sum(one // shape.per_group == group for one in kept) for group in range(shape.n_group)]
        if set(first) <= set(kept) and min(groups) == max(groups):
            yield kept


def brute(shares, count, shape, first=()):
    return max(min(covered(shares, kept)) for kept in allowed(len(shares), count, shape, first))


def searched(by_domain, count, shape, first=()):
    shares = best_shares(by_domain, count, shape)
    start = best(by_domain.sum(axis=1), count, shape, first)
    return shares, start, max_min(shares, count, shape, first, start)


def test_a_worked_example():
    # Two domains, two places. By their sums experts 0 and 1 stay, and prose is left with nothing.
    by_domain = np.array([[10.0, 0.0], [9.0, 0.0], [0.0, 4.0], [0.0, 4.0], [1.0, 1.0]])
    shape = router(5)
    shares, start, found = searched(by_domain, 2, shape)
    assert start == (0, 1)
    assert covered(shares, start) == [1.0, 0.0]
    assert found.kept == (0, 2)
    assert covered(shares, found.kept) == [10 / 19, 0.5]
    assert found.worst == 0.5
    assert found.bound >= 0.5


def test_a_set_that_is_best_for_its_domain_covers_all_of_it():
    by_domain = made(1)
    shares = best_shares(by_domain, 4, router(8))
    for domain in range(3):
        assert covered(shares, best(by_domain[:, domain], 4, router(8)))[domain] == pytest.approx(1, abs=1e-15)


def test_the_search_against_all_sets():
    optimal, of_mean, gaps = 0, 0, []
    for seed in range(200):
        by_domain = made(seed, 9, 2 + seed % 3)
        shares, start, found = searched(by_domain, 4, router(9))
        most = brute(shares, 4, router(9))
        assert min(covered(shares, start)) <= found.worst <= most <= found.bound + 1e-12
        optimal += found.worst == most
        of_mean += min(covered(shares, start)) == most
        gaps.append(most - found.worst)
    # Measured: 197 of 200 are the best there is, the others miss it by 0.012 at most; the start is it in 77.
    # Without the exchanges from the start, 195 were.
    assert optimal >= 196
    assert of_mean < 100
    assert max(gaps) < 0.02


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), forced=st.sets(st.integers(0, 7), max_size=2), groups=st.sampled_from([1, 2]))
def test_max_min_keeps_required_experts_and_groups(seed, forced, groups):
    by_domain, shape = made(seed), router(8, 1, groups, 1)
    shares, start, found = searched(by_domain, 4, shape, forced)
    assert found.kept in set(allowed(8, 4, shape, forced))
    assert list(found.kept) == sorted(set(found.kept))
    assert min(covered(shares, start)) <= found.worst <= brute(shares, 4, shape, forced)
    assert brute(shares, 4, shape, forced) <= found.bound + 1e-12


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_no_single_swap_improves_the_max_min_set(seed):
    shares, _, found = searched(made(seed), 4, router(8))
    for goes, comes in itertools.product(found.kept, set(range(8)) - set(found.kept)):
        other = sorted({*found.kept, comes} - {goes})
        assert min(covered(shares, other)) <= found.worst + 1e-11


def test_max_min_with_one_domain_is_its_best_set():
    by_domain = made(5, 8, 1)
    _, start, found = searched(by_domain, 4, router(8))
    assert found.kept == start == best(by_domain[:, 0], 4, router(8))
    nothing = np.zeros((8, 2))
    assert best_shares(nothing, 4, router(8)).shape == (8, 0)
    assert searched(nothing, 4, router(8))[2] == ((0, 1, 2, 3), 1.0, 1.0)
    assert least_bound(nothing, 4, router(8)) == 1.0


def test_a_domain_without_tokens_does_not_decide():
    by_domain = made(6, 8, 2)
    with_empty = np.concatenate([by_domain, np.zeros((8, 1))], axis=1)
    assert searched(with_empty, 4, router(8))[2] == searched(by_domain, 4, router(8))[2]


def test_max_min_at_the_size_of_kimi():
    by_domain = made(7, 384, 6)
    shares, start, found = searched(by_domain, 192, router(384))
    assert found.worst > min(covered(shares, start))
    assert found.bound - found.worst < 0.01
    assert least_bound(by_domain, 192, router(384)) == found.bound
