"""Sums per expert and domain over routed tokens, added in fixed chunks of `SUM_ROWS` rows.

Tokens are added in order within each chunk, and chunks in order. The sums are therefore bit-identical for any number of
threads, and whether experts are measured one at a time or all at once.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from halfbyte.calibrate.stats import SUMS, ExpertStats
from halfbyte.calibrate.token_rows import Rows

SUM_ROWS = 64


class RoutedTokens(NamedTuple):
    """Tokens routed to some experts, in any order: expert (index into `numbers`), position in the rows, g, p and n."""

    numbers: list[int]
    expert: NDArray[np.int64]
    place: NDArray[np.int64]
    g: NDArray[np.float64]
    p: NDArray[np.float64]
    n: NDArray[np.float64]


class Cells:
    """Accumulation cells by expert, chunk of rows and domain. Padding is excluded."""

    def __init__(self, numbers: list[int], expert: NDArray[np.int64], place: NDArray[np.int64], rows: Rows) -> None:
        domains = rows.domains.reshape(-1)
        kept = np.flatnonzero(domains[place] >= 0)
        self.order = kept[np.argsort(expert[kept] * rows.tokens.size + place[kept], kind="stable")]
        self.expert, place = expert[self.order], place[self.order]
        self.domain = domains[place].astype(np.int64)
        self._shape = len(numbers), -(-len(rows.tokens) // SUM_ROWS), len(rows.names)
        part = place // (SUM_ROWS * rows.tokens.shape[1])
        self._cell = (self.expert * self._shape[1] + part) * self._shape[2] + self.domain

    def count(self) -> NDArray[np.int64]:
        """Return the number of tokens of each expert and domain."""
        experts, _, domains = self._shape
        counts = np.bincount(self.expert * domains + self.domain, minlength=experts * domains)
        return counts.reshape(experts, domains)

    def total(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the sum for each expert and domain; `values` are ordered by `order`."""
        experts, parts, domains = self._shape
        partial = np.bincount(self._cell, weights=values, minlength=experts * parts * domains).reshape(self._shape)
        total = np.zeros((experts, domains))
        for at in range(parts):  # in order: np.sum uses pairwise summation
            total += partial[:, at]
        return total

    def largest(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the largest value of each expert and domain, 0 if it has no tokens."""
        largest = np.zeros((self._shape[0], self._shape[2]))
        np.maximum.at(largest, (self.expert, self.domain), values)
        return largest


def add_routed(stats: ExpertStats, routed: RoutedTokens, rows: Rows) -> None:
    """Add routed tokens to the statistics of their experts, ignoring padding."""
    cells = Cells(routed.numbers, routed.expert, routed.place, rows)
    g, p, n = routed.g[cells.order], routed.p[cells.order], routed.n[cells.order]
    stats.count[routed.numbers] = cells.count()
    values = {"g": g, "g2": g * g, "n": n, "n2": n * n, "gn": g * n, "g2n": g * g * n, "g2n2": (g * n) ** 2}
    values |= {"p": p, "pn": p * n}
    for name in SUMS:
        stats.sums[name][routed.numbers] += cells.total(values[name])
    for name, value in (("n", n), ("gn", g * n)):
        stats.maxes[name][routed.numbers] = np.maximum(stats.maxes[name][routed.numbers], cells.largest(value))
