"""Sums per expert and domain over routed tokens, made of parts of `SUM_ROWS` rows that are added in their order.

Whoever measures those rows, one expert at a time or all at once, with any number of threads: the sums are the same to
the last bit, because each cell adds its tokens in their order.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from halfbyte.calibrate.rows import Rows
from halfbyte.calibrate.stats import SUMS, ExpertStats

SUM_ROWS = 64


class RoutedTokens(NamedTuple):
    """Tokens that some experts were given, in any order: which expert (an index into `numbers`), where, g, p and n."""

    numbers: list[int]
    expert: NDArray[np.int64]
    place: NDArray[np.int64]
    g: NDArray[np.float64]
    p: NDArray[np.float64]
    n: NDArray[np.float64]


def add_routed(stats: ExpertStats, routed: RoutedTokens, rows: Rows) -> None:
    """Add what these tokens say to the statistics of their experts; padding says nothing."""
    all_domains = rows.domains.reshape(-1)
    real = all_domains[routed.place] >= 0
    kept = np.flatnonzero(real)
    order = kept[np.argsort(routed.expert[kept] * rows.tokens.size + routed.place[kept], kind="stable")]
    expert, place = routed.expert[order], routed.place[order]
    g, p, n = routed.g[order], routed.p[order], routed.n[order]
    domain = all_domains[place].astype(np.int64)
    part = place // (SUM_ROWS * rows.tokens.shape[1])
    shape = len(routed.numbers), -(-len(rows.tokens) // SUM_ROWS), len(rows.names)
    cell = (expert * shape[1] + part) * shape[2] + domain
    count = np.bincount(expert * shape[2] + domain, minlength=shape[0] * shape[2])
    stats.count[routed.numbers] = count.reshape(shape[0], shape[2])
    values = {"g": g, "g2": g * g, "n": n, "n2": n * n, "gn": g * n, "g2n": g * g * n, "g2n2": (g * n) ** 2}
    values |= {"p": p, "pn": p * n}
    for name in SUMS:
        partial = np.bincount(cell, weights=values[name], minlength=shape[0] * shape[1] * shape[2]).reshape(shape)
        total = np.zeros((shape[0], shape[2]))
        for at in range(shape[1]):  # in order: np.sum would add in pairs
            total += partial[:, at]
        stats.sums[name][routed.numbers] += total
    for name, value in (("n", n), ("gn", g * n)):
        largest = np.zeros((shape[0], shape[2]))
        np.maximum.at(largest, (expert, domain), value)
        stats.maxes[name][routed.numbers] = np.maximum(stats.maxes[name][routed.numbers], largest)
