"""Look at a layer while it runs, and keep what `stats` wants of it.

Sums are made of parts of `SUM_ROWS` rows, added in their order: whoever measures those rows, and with how many threads,
the sums are the same to the last bit.
"""

from __future__ import annotations

import threading

import numpy as np
import torch
from numpy.typing import NDArray

from halfbyte.calibrate.moments import Moments, second_moments
from halfbyte.calibrate.rows import Rows
from halfbyte.calibrate.stats import SUMS, ExpertStats, LayerStats
from halfbyte.errors import CheckpointError
from halfbyte.forward.layer import Look

SUM_ROWS = 64
_HEADS_FIRST = ("self_attn.k", "self_attn.v")  # [R, H, L, d]; everything else is [R, L, d]


class Observer:
    """What is measured in one layer."""

    def __init__(self, layer: int, rows: Rows, experts: int, *, moments: bool = False) -> None:
        self._layer, self._rows = layer, rows
        self._lock = threading.Lock()
        self.stats = LayerStats(experts=ExpertStats.empty(experts, len(rows.names)) if experts else None)
        if experts and moments:
            self.stats.moments = Moments()
        self._domains = rows.domains.reshape(-1).astype(np.int64)
        length = rows.tokens.shape[1]
        self._parts = np.arange(rows.tokens.size) // (SUM_ROWS * length)
        # Where rows are padded on the left, padding flows through the model and counts; elsewhere it is no token.
        self._counts = None if rows.left_padded else torch.from_numpy(rows.real)

    def look(self, chunk: slice) -> Look:
        """Return what sees the inputs of linears, keys and values of some rows."""
        counts = self._counts[chunk] if self._counts is not None else None

        def look(name: str, tensor: torch.Tensor) -> None:
            if counts is not None and not counts.all():
                tensor = (tensor.transpose(1, 2) if name in _HEADS_FIRST else tensor).reshape(*counts.shape, -1)[counts]
            self._largest(name, _amax(tensor))

        return look

    def _largest(self, name: str, amax: float) -> None:
        if not np.isfinite(amax):
            raise not_finite(self._layer, name)
        with self._lock:
            self.stats.input_amax[name] = max(self.stats.input_amax.get(name, 0.0), amax)

    def expert(
        self,
        expert: int,
        tokens: torch.Tensor,
        gate_weights: torch.Tensor,
        given: torch.Tensor,
        act: torch.Tensor,
        out: torch.Tensor,
    ) -> None:
        """See what an expert did with its tokens."""
        stats = self.stats.experts
        assert stats is not None
        places = tokens.cpu().numpy()
        if self._counts is not None:
            kept = self._rows.real.reshape(-1)[places]
            if not kept.all():
                chosen = torch.from_numpy(kept)
                places, gate_weights = places[kept], gate_weights[chosen]
                given, act, out = given[chosen], act[chosen], out[chosen]
        if not len(places):
            return
        amax = (_amax(given), _amax(act), _amax(out))
        if not np.isfinite(amax).all():
            raise not_finite(self._layer, f"mlp.experts.{expert}")
        stats.seen[expert] = len(places)
        stats.input_amax[expert], stats.down_amax[expert], stats.out_amax[expert] = amax
        if self.stats.moments is not None:
            self.stats.moments.acts[expert] = self._of_real(act, gate_weights, places)
        norms = out.double().square().sum(-1).sqrt().cpu().numpy()
        self._add(stats, expert, places, gate_weights.double().cpu().numpy(), norms)

    def all_given(self, given: torch.Tensor) -> None:
        """See what all experts together were given, [T, D]."""
        if self.stats.moments is not None:
            self.stats.moments.given = self._of_real(given, None, np.arange(len(given)))

    def _of_real(self, x: torch.Tensor, weights: torch.Tensor | None, places: NDArray[np.int64]) -> NDArray[np.float64]:
        """Moments over tokens; padding is none of them, also where its amax counts."""
        real = torch.from_numpy(self._rows.real.reshape(-1)[places])
        return second_moments(x[real], None if weights is None else weights[real])

    def _add(
        self,
        stats: ExpertStats,
        expert: int,
        places: NDArray[np.int64],
        g: NDArray[np.float64],
        n: NDArray[np.float64],
    ) -> None:
        domains = self._domains[places]
        real = domains >= 0
        order = np.argsort(places[real], kind="stable")
        places, domains, g, n = places[real][order], domains[real][order], g[real][order], n[real][order]
        count = len(self._rows.names)
        parts = int(self._parts[-1]) + 1
        cells = self._parts[places] * count + domains
        stats.count[expert] = np.bincount(domains, minlength=count)
        values = {"g": g, "g2": g * g, "n": n, "n2": n * n, "gn": g * n, "g2n": g * g * n, "g2n2": (g * n) ** 2}
        for name in SUMS:
            partial = np.bincount(cells, weights=values[name], minlength=parts * count).reshape(parts, count)
            for part in partial:  # in order: np.sum would add in pairs
                stats.sums[name][expert] += part
        for name, value in (("n", n), ("gn", g * n)):
            np.maximum.at(stats.maxes[name][expert], domains, value)


def _amax(tensor: torch.Tensor) -> float:
    return float(tensor.abs().max()) if tensor.numel() else 0.0


def not_finite(layer: int, name: str) -> CheckpointError:
    """Say where a forward broke down."""
    what = f"layer {layer}: {name} has values that are not finite"
    return CheckpointError(what, where="calibration", fix="the weights are damaged, or this is not how they are stored")
