"""Look at a layer while it runs, and keep what `stats` wants of it."""

from __future__ import annotations

import threading
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray

from halfbyte.calibrate.moments import Moments, second_moments
from halfbyte.calibrate.public import PublicSelection
from halfbyte.calibrate.routing import Routing
from halfbyte.calibrate.rows import Rows
from halfbyte.calibrate.stats import ExpertStats, LayerStats
from halfbyte.calibrate.sums import RoutedTokens, add_routed
from halfbyte.errors import CheckpointError
from halfbyte.forward.experts import Expert
from halfbyte.forward.layer import Look, Routed
from halfbyte.forward.softmax import softmax_weights

HEADS_FIRST = ("self_attn.k", "self_attn.v")  # [R, H, L, d]; everything else is [R, L, d]


class Observer:
    """What is measured in one layer."""

    def __init__(self, layer: int, rows: Rows, experts: int, *, moments: bool = False, public: bool = False) -> None:
        self._layer, self._rows = layer, rows
        self._lock = threading.Lock()
        self._softmax = Routing()
        self._public = PublicSelection(rows) if experts and public else None
        empty = ExpertStats.empty(experts, len(rows.names), public=public) if experts else None
        self.stats = LayerStats(experts=empty)
        if experts and moments:
            self.stats.moments = Moments()
        # Where rows are padded on the left, padding flows through the model and counts; elsewhere it is no token.
        self._counts = None if rows.left_padded else torch.from_numpy(rows.real)

    def look(self, chunk: slice) -> Look:
        """Return what sees the inputs of linears, keys and values of some rows."""
        counts = self._counts[chunk] if self._counts is not None else None

        def look(name: str, tensor: torch.Tensor) -> None:
            if counts is not None and not counts.all():
                tensor = (tensor.transpose(1, 2) if name in HEADS_FIRST else tensor).reshape(*counts.shape, -1)[counts]
            self._largest(name, _amax(tensor))

        return look

    def routes(self, chunk: slice, routed: Routed) -> None:
        """See how the tokens of some rows are routed; of all rows, before any expert is seen."""
        self._softmax.tell(chunk, routed.indices, softmax_weights(routed.logits, routed.indices))
        if self._public is not None:
            self._public.routes(chunk, routed)

    @cached_property
    def _softmax_weights(self) -> dict[int, tuple[torch.Tensor, torch.Tensor]]:
        return self._softmax.by_expert()

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
        softmax = self._softmax_weights[expert][1]
        if self._counts is not None:
            kept = self._rows.real.reshape(-1)[places]
            if not kept.all():
                chosen = torch.from_numpy(kept)
                places, gate_weights, softmax = places[kept], gate_weights[chosen], softmax[chosen]
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
        g, p = (weights.double().cpu().numpy() for weights in (gate_weights, softmax))
        if self._public is not None:
            self._public.see(expert, places, norms)
        add_routed(stats, RoutedTokens([expert], np.zeros(len(places), np.int64), places, g, p, norms), self._rows)

    def all_given(self, given: torch.Tensor) -> None:
        """See what all experts together were given, [T, D]."""
        if self.stats.moments is not None:
            self.stats.moments.given = self._of_real(given, None, np.arange(len(given)))

    def run_public(self, given: torch.Tensor, expert: Expert, threads: int) -> None:
        """Let experts see what the public REAP code would show them besides, if that is to be known."""
        if self._public is None or self.stats.experts is None:
            return
        self._public.finish(self.stats.experts, given, expert, threads)
        for number, total in enumerate(self.stats.experts.sums["pn_public"]):
            if not np.isfinite(total).all():
                raise not_finite(self._layer, f"mlp.experts.{number}")

    def _of_real(self, x: torch.Tensor, weights: torch.Tensor | None, places: NDArray[np.int64]) -> NDArray[np.float64]:
        """Moments over tokens; padding is none of them, also where its amax counts."""
        real = torch.from_numpy(self._rows.real.reshape(-1)[places])
        return second_moments(x[real], None if weights is None else weights[real])


def _amax(tensor: torch.Tensor) -> float:
    return float(tensor.abs().max()) if tensor.numel() else 0.0


def not_finite(layer: int, name: str) -> CheckpointError:
    """Say where a forward broke down."""
    what = f"layer {layer}: {name} has values that are not finite"
    return CheckpointError(what, where="calibration", fix="the weights are damaged, or this is not how they are stored")
