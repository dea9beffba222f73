"""Statistics: addition, and round trips through a file."""

import numpy as np
import safetensors.numpy

from halfbyte.calibrate.stats import LATER_SUMS, MAXES, PUBLIC_SUMS, SUMS, ExpertStats, LayerStats, merge


def make_stats(seed, experts=5, domains=2, *, public=False):
    random = np.random.default_rng(seed)
    made = ExpertStats.empty(experts, domains, public=public)
    for tensor in made.tensors().values():
        tensor[...] = (random.standard_normal(tensor.shape) * 100).astype(tensor.dtype)
        np.abs(tensor, out=tensor)
    return LayerStats({"mlp.up_proj": float(np.float32(random.random())), f"only.{seed}": 0.5}, made)


def same(one, other):
    ours, theirs = one.tensors(), other.tensors()
    return ours.keys() == theirs.keys() and all(
        ours[name].dtype == theirs[name].dtype and ours[name].tobytes() == theirs[name].tobytes() for name in ours
    )


def test_merging_adds_sums_and_counts_and_keeps_the_largest():
    one, two = make_stats(1), make_stats(2)
    found = merge([one, two])
    assert found.input_amax == {
        "mlp.up_proj": max(one.input_amax["mlp.up_proj"], two.input_amax["mlp.up_proj"]),
        "only.1": 0.5,
        "only.2": 0.5,
    }
    both = [(part.experts, found.experts) for part in (one, two)]
    (a, c), (b, _) = both
    assert a is not None
    assert b is not None
    assert c is not None
    for name in SUMS:
        assert np.array_equal(c.sums[name], a.sums[name] + b.sums[name])
    for name in MAXES:
        assert np.array_equal(c.maxes[name], np.maximum(a.maxes[name], b.maxes[name]))
    for name in ("count", "seen"):
        assert np.array_equal(getattr(c, name), getattr(a, name) + getattr(b, name))
    for name in ("input_amax", "down_amax", "out_amax", "all_down_amax"):
        assert np.array_equal(getattr(c, name), np.maximum(getattr(a, name), getattr(b, name)))


def test_merging_changes_none_of_its_parts():
    one, two = make_stats(1), make_stats(2)
    merge([one, two])
    merge([one])
    assert same(one, make_stats(1))
    assert same(two, make_stats(2))
    assert same(merge([one]), one)


def test_empty_statistics_are_neutral():
    one = make_stats(1)
    empty = LayerStats({}, ExpertStats.empty(5, 2))
    assert same(merge([one, empty]), one)
    assert same(merge([empty, one]), one)


def test_dense_layers_merge_too():
    found = merge([LayerStats({"mlp.down_proj": 1.0}), LayerStats({"mlp.down_proj": 3.0})])
    assert found.input_amax == {"mlp.down_proj": 3.0}
    assert found.experts is None


def test_statistics_round_trip():
    for stats in (
        make_stats(3),
        make_stats(4, public=True),
        LayerStats({"mlp.down_proj": 1.5}),
        LayerStats({}, ExpertStats.empty(2, 1)),
    ):
        back = LayerStats.of(safetensors.numpy.load(safetensors.numpy.save(stats.tensors())))
        assert same(back, stats)
        assert back.input_amax == stats.input_amax
        assert (back.experts is None) == (stats.experts is None)


def test_sums_are_in_64_bits():
    stats = ExpertStats.empty(3, 2)
    assert {array.dtype for array in stats.sums.values()} == {np.dtype(np.float64)}
    assert (stats.count.dtype, stats.seen.dtype) == (np.int64, np.int64)


def earlier(stats):
    """The same statistics from a version with fewer sums."""
    left_out = {f"experts.sum_{name}" for name in LATER_SUMS}
    return LayerStats.of({name: array for name, array in stats.tensors().items() if name not in left_out})


def test_sums_of_an_earlier_version_are_absent():
    """Not zeros, which would mark an expert as useless; also after merging."""
    old, new = earlier(make_stats(1)), make_stats(2)
    for stats in (old, merge([old, earlier(new)]), merge([old, new]), merge([new, old])):
        assert stats.experts is not None
        assert stats.experts.sums.keys() == set(SUMS) - set(LATER_SUMS)
        assert not {f"experts.sum_{name}" for name in LATER_SUMS} & stats.tensors().keys()
    assert same(LayerStats.of(old.tensors()), old)


def test_the_public_codes_selection_is_there_only_if_all_parts_have_it():
    one, two = make_stats(1, public=True), make_stats(2, public=True)
    found = merge([one, two]).experts
    assert found is not None
    for name in PUBLIC_SUMS:
        assert np.array_equal(found.sums[name], one.experts.sums[name] + two.experts.sums[name])
    assert np.array_equal(found.count_public, one.experts.count_public + two.experts.count_public)
    for parts in ([one, make_stats(2)], [make_stats(2), one]):
        found = merge(parts).experts
        assert found is not None
        assert not found.sums.keys() & set(PUBLIC_SUMS)
        assert found.count_public is None
