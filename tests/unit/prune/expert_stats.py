"""Expert statistics for tests of pruning, hand-made or random."""

import numpy as np

from halfbyte.calibrate.stats import ExpertStats, LayerStats
from halfbyte.plan.pruned import RouterShape
from halfbyte.recipe.decisions import Prune


def stats(count, gn=None, out=None, **sums):
    """One layer: arrays [E, B], or [E] for one domain; `out` [E] defaults to 1."""
    count = two_dimensional(count)
    found = ExpertStats.empty(*count.shape)
    found.count[...] = count
    found.out_amax[...] = 1 if out is None else out
    if (public := sums.pop("count_public", None)) is not None:
        found.count_public = two_dimensional(public).astype(np.int64)
    for name, values in {"gn": count if gn is None else gn, **sums}.items():
        found.sums[name] = two_dimensional(values).astype(np.float64)
    return LayerStats({}, found)


def two_dimensional(values):
    array = np.array(values)
    return array.reshape(len(array), -1)


def random_stats(seed, experts=16, domains=3):
    """Integers, so that sums are exact in any order."""
    random = np.random.default_rng(seed)
    names = ("gn", "n", "n2", "g2n", "g2n2", "g", "g2")
    sums = {name: random.integers(1, 10_000, (experts, domains)) for name in names}
    return stats(random.integers(1, 100, (experts, domains)), out=random.integers(1, 5, experts), **sums)


def rule(keep=None, **said):
    said = {"method": "reap", "protect": False, **said}
    return Prune(statistics="file", keep=keep, **said)


def router(experts, top_k=1, n_group=1, topk_group=1):
    return RouterShape(experts, top_k, n_group, topk_group)
