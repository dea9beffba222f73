"""Collect a layer's calibration statistics while it runs."""

from __future__ import annotations

import threading
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray

from halfbyte.calibrate.expert_sums import RoutedTokens, add_routed
from halfbyte.calibrate.reap_reference import PublicSelection
from halfbyte.calibrate.routing import Routing, softmax_weights
from halfbyte.calibrate.stats import ExpertStats, LayerStats
from halfbyte.calibrate.token_rows import Rows
from halfbyte.errors import CheckpointError
from halfbyte.forward.experts import Expert
from halfbyte.forward.model import Hook, Routed
from halfbyte.methods.gptq import Hessians

_WITH_HEADS = 4  # dimensions of [R, H, L, d]


class Observer:
    """Collector of one layer's statistics."""

    def __init__(self, layer: int, rows: Rows, experts: int, *, hessians: bool = False, public: bool = False) -> None:
        self._layer, self._rows = layer, rows
        self._lock = threading.Lock()
        self._softmax = Routing()
        self._public = PublicSelection(rows) if experts and public else None
        empty = ExpertStats.empty(experts, len(rows.names), public=public) if experts else None
        self.stats = LayerStats(experts=empty)
        if experts and hessians:
            self.stats.hessians = Hessians()
        # In left-padded rows, padding passes through the model and counts for amax. In packed rows it is excluded.
        self._counts = None if rows.left_padded else torch.from_numpy(rows.real)

    def hook(self, chunk: slice) -> Hook:
        """Return the callback for inputs of linears, keys and values of a chunk of rows."""
        counts = self._counts[chunk] if self._counts is not None else None

        def hook(name: str, tensor: torch.Tensor) -> None:
            if counts is not None and not counts.all():
                tensor = tokens_second(tensor).reshape(*counts.shape, -1)[counts]
            self._update_amax(name, _amax(tensor))

        return hook

    def routes(self, chunk: slice, routed: Routed) -> None:
        """Record the routing of a chunk of rows. All rows must be recorded before any expert."""
        self._softmax.add(chunk, routed.indices, softmax_weights(routed.logits, routed.indices))
        if self._public is not None:
            self._public.routes(chunk, routed)

    @cached_property
    def _softmax_weights(self) -> dict[int, tuple[torch.Tensor, torch.Tensor]]:
        return self._softmax.by_expert()

    def _update_amax(self, name: str, amax: float) -> None:
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
        """Record an expert's inputs, activations and outputs."""
        stats = self.stats.experts
        assert stats is not None
        places = tokens.cpu().numpy()
        softmax = self._softmax_weights[expert][1]
        if self._counts is not None:
            real = self._rows.real.reshape(-1)[places]
            if not real.all():
                mask = torch.from_numpy(real)
                places, gate_weights, softmax = places[real], gate_weights[mask], softmax[mask]
                given, act, out = given[mask], act[mask], out[mask]
        if not len(places):
            return
        amax = (_amax(given), _amax(act), _amax(out))
        if not np.isfinite(amax).all():
            raise not_finite(self._layer, f"expert {expert}")
        stats.seen[expert] = len(places)
        stats.input_amax[expert], stats.down_amax[expert], stats.out_amax[expert] = amax
        if self.stats.hessians is not None:
            self.stats.hessians.by_expert[expert] = self._hessian(act, gate_weights, places)
        norms = out.double().square().sum(-1).sqrt().cpu().numpy()
        g, p = (weights.double().cpu().numpy() for weights in (gate_weights, softmax))
        if self._public is not None:
            self._public.see(expert, places, norms)
        add_routed(stats, RoutedTokens([expert], np.zeros(len(places), np.int64), places, g, p, norms), self._rows)

    def all_inputs(self, inputs: torch.Tensor) -> None:
        """Record the inputs of all tokens to the experts, [T, D]."""
        if self.stats.hessians is not None:
            self.stats.hessians.shared = self._hessian(inputs, None, np.arange(len(inputs)))

    def run_public(self, inputs: torch.Tensor, expert: Expert, threads: int) -> None:
        """Run experts on the additional tokens that the public REAP code routes to them, if requested."""
        if self._public is None or self.stats.experts is None:
            return
        self._public.finish(self.stats.experts, inputs, expert, threads)
        for number, total in enumerate(self.stats.experts.sums["pn_public"]):
            if not np.isfinite(total).all():
                raise not_finite(self._layer, f"expert {number}")

    def _hessian(self, x: torch.Tensor, weights: torch.Tensor | None, places: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the Hessian over real tokens, without padding."""
        real = torch.from_numpy(self._rows.real.reshape(-1)[places])
        return hessian(x[real], None if weights is None else weights[real])


def tokens_second(tensor: torch.Tensor) -> torch.Tensor:
    """Return activations, [R, L, d] or [R, H, L, d], with the tokens in the second dimension."""
    return tensor.transpose(1, 2) if tensor.ndim == _WITH_HEADS else tensor


def _amax(tensor: torch.Tensor) -> float:
    return float(tensor.abs().max()) if tensor.numel() else 0.0


def not_finite(layer: int, name: str) -> CheckpointError:
    """Return the error for non-finite values in the forward pass."""
    what = f"layer {layer}: non-finite values in {name}"
    return CheckpointError(what, where="calibration", fix="check the weights: they are damaged or in another format")


# Hessians (X^T X) of routed expert inputs for GPTQ. The gate and up projections of all experts share the Hessian of all
# tokens, so one factorization serves them all. The down projection has one Hessian per expert, with each token weighted
# by its router weight. For E experts of width F and a model of width D this takes 8 * (E * F^2 + D^2) bytes, 13 GB per
# layer of Kimi-K2. Hessians are therefore never saved, and a layer whose weights are not completely written is measured
# again.

_TOKENS = 1 << 15  # tokens per FP64 product


def hessian(x: torch.Tensor, weights: torch.Tensor | None = None) -> NDArray[np.float64]:
    """Return the sum of w^2 x x^T over tokens [T, K], accumulated in chunks of a fixed size."""
    total = torch.zeros(x.shape[1], x.shape[1], dtype=torch.float64)
    for start in range(0, len(x), _TOKENS):
        part = x[start : start + _TOKENS].double()
        if weights is not None:
            part = part * weights[start : start + _TOKENS, None].double()
        total += part.t() @ part
    return total.numpy()
