"""Collect statistics of a layer on the device without synchronizing until the layer is done.

The statistics are those of `calibrate.observe`. Sums are computed on the device, in token order within each cell.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch

from halfbyte.calibrate.expert_sums import SUM_ROWS
from halfbyte.calibrate.observe import not_finite, tokens_second
from halfbyte.calibrate.routing import Routing, softmax_weights
from halfbyte.calibrate.stats import SUMS, ExpertStats, LayerStats
from halfbyte.calibrate.token_rows import Rows
from halfbyte.engine.backends.cuda.placement import HESSIAN_TOKENS
from halfbyte.formats.gpu.combine import combine
from halfbyte.forward.model import Hook, Routed
from halfbyte.methods.gptq import Hessians

_linalg: Any = torch.linalg  # its functions are untyped


def _amax(tensor: torch.Tensor) -> torch.Tensor:
    return _linalg.vector_norm(tensor, ord=float("inf"))


class _Call(NamedTuple):
    """One call of an expert: tokens, gate weights, amax of its inputs, and norms and amax of its outputs."""

    expert: int
    tokens: torch.Tensor
    weights: torch.Tensor
    given: torch.Tensor
    act: torch.Tensor
    norms: torch.Tensor
    largest: torch.Tensor


@dataclass(frozen=True, slots=True, eq=False)
class DeviceHessians:
    """Hessians of a layer's expert inputs on the device, as `methods.gptq.Hessians`."""

    shared: torch.Tensor  # FP64 [D, D]
    by_expert: torch.Tensor  # FP64 [E, F, F]

    def on_host(self) -> Hessians:
        """Return a copy for the encoder of the host."""
        return Hessians(self.shared.cpu().numpy(), dict(enumerate(self.by_expert.cpu().numpy())))


def added_hessians(parts: Sequence[DeviceHessians], device: torch.device) -> DeviceHessians:
    """Return the sum over the rows of all devices, on one of them; added in row order."""
    if len(parts) == 1:
        return parts[0]
    total = DeviceHessians(*(tensor.to(device, copy=True) for tensor in (parts[0].shared, parts[0].by_expert)))
    for part in parts[1:]:
        total.shared.add_(part.shared.to(device))
        total.by_expert.add_(part.by_expert.to(device))
    return total


class DeviceObserver:
    """Collects the statistics of one layer; `finish` synchronizes and returns them."""

    def __init__(
        self, layer: int, rows: Rows, experts: int, device: torch.device, *, hessians: tuple[int, int] | None = None
    ) -> None:
        """`hessians` are the widths D and F of the experts' inputs, if their Hessians are needed."""
        self._layer, self._rows, self._experts, self._device = layer, rows, experts, device
        self._largest: dict[str, torch.Tensor] = {}
        self._calls: list[_Call] = []
        self._softmax = Routing()
        self._added: tuple[torch.Tensor, torch.Tensor] | None = None
        counts = rows.left_padded or bool(rows.real.all())  # left padding is part of the model's input
        self._real = None if counts else torch.from_numpy(rows.real).to(device)
        self.hessians: DeviceHessians | None = None
        if hessians is not None and experts:
            width, inner = hessians
            shared = torch.zeros((width, width), dtype=torch.float64, device=device)
            by_expert = torch.zeros((experts, inner, inner), dtype=torch.float64, device=device)
            self.hessians = DeviceHessians(shared, by_expert)
            # Unlike for amax, padding never counts.
            self._weight = None if rows.real.all() else torch.from_numpy(rows.real.reshape(-1)).to(device).double()

    def hook(self, chunk: slice) -> Hook:
        """Return an observer of linear inputs, keys and values for some rows."""
        real = self._real[chunk] if self._real is not None and not self._rows.real[chunk].all() else None

        def hook(name: str, tensor: torch.Tensor) -> None:
            if real is not None:
                tensor = tokens_second(tensor).reshape(*real.shape, -1)[real]
            if tensor.numel():
                amax = _amax(tensor)
                previous = self._largest.get(name)
                self._largest[name] = amax if previous is None else torch.maximum(previous, amax)

        return hook

    def routes(self, chunk: slice, routed: Routed) -> None:
        """Record the routing of some rows' tokens."""
        self._softmax.add(chunk, routed.indices, softmax_weights(routed.logits, routed.indices))

    def add(self, total: torch.Tensor, tokens: torch.Tensor, weights: torch.Tensor, out: torch.Tensor) -> None:
        """Add an expert's outputs to the sum, and keep their norms and amax."""
        self._added = combine(total, tokens, weights, out)

    def expert(
        self,
        expert: int,
        tokens: torch.Tensor,
        gate_weights: torch.Tensor,
        given: torch.Tensor,
        act: torch.Tensor,
        out: torch.Tensor,
    ) -> None:
        """Record a call of an expert."""
        assert self._added is not None
        norms, largest = self._added
        if self.hessians is not None:
            self._add_to(self.hessians.by_expert[expert], act, gate_weights.double(), tokens)
        if self._real is not None:
            # Padding is set to zero, because removing it would need its count and synchronize with the device.
            real = self._real.view(-1)[tokens]
            given, act = (torch.where(real[:, None], tensor, 0) for tensor in (given, act))
            largest = torch.where(real, largest, 0)
        self._calls.append(_Call(expert, tokens, gate_weights, _amax(given), _amax(act), norms, largest))

    def all_inputs(self, inputs: torch.Tensor) -> None:
        """Record the inputs of all tokens to the experts, [T, D]."""
        if self.hessians is None:
            return
        for start in range(0, len(inputs), HESSIAN_TOKENS):
            part = slice(start, start + HESSIAN_TOKENS)
            self._add_to(self.hessians.shared, inputs[part], None, part)

    def _add_to(
        self, total: torch.Tensor, x: torch.Tensor, weights: torch.Tensor | None, tokens: torch.Tensor | slice
    ) -> None:
        """Add w^2 x x^T of the tokens that are not padding."""
        x = x.double()
        if self._weight is not None:
            real = self._weight[tokens]
            weights = real if weights is None else weights * real
        if weights is not None:
            x = x * weights[:, None]
        total.addmm_(x.t(), x)

    def finish(self) -> LayerStats:
        """Return the statistics; synchronizes."""
        stats = LayerStats({name: float(amax) for name, amax in self._largest.items()})
        for name, amax in stats.input_amax.items():
            if not np.isfinite(amax):
                raise not_finite(self._layer, name)
        if self._experts:
            stats.experts = ExpertStats.empty(self._experts, len(self._rows.names))
            if self._calls:
                self._finish_experts(stats.experts)
        return stats

    def _finish_experts(self, stats: ExpertStats) -> None:
        # An expert with many tokens has several calls.
        numbers = list(dict.fromkeys(call.expert for call in self._calls))
        rows = {number: row for row, number in enumerate(numbers)}
        lengths = torch.tensor([len(call.tokens) for call in self._calls], device=self._device)
        experts = torch.tensor([rows[call.expert] for call in self._calls], device=self._device)
        softmax = self._softmax.by_expert()  # all tokens of an expert, whose calls are consecutive
        routed = _Routed(
            expert=torch.repeat_interleave(experts, lengths),
            token=torch.cat([call.tokens for call in self._calls]),
            g=torch.cat([call.weights for call in self._calls]),
            p=torch.cat([softmax[number][1] for number in numbers]),
            n=torch.cat([call.norms for call in self._calls]),
        )
        amax = torch.stack(
            [
                torch.stack([call.given for call in self._calls]).float(),
                torch.stack([call.act for call in self._calls]).float(),
                torch.stack([call.largest.max() for call in self._calls]),
                torch.stack([call.norms.max() for call in self._calls]).float(),  # not finite if an output is not
            ]
        )
        host_amax: Any = amax.cpu().numpy()
        for call, column in zip(self._calls, host_amax.T, strict=True):
            if not np.isfinite(column).all():
                raise not_finite(self._layer, f"expert {call.expert}")
            for amax_of, largest in zip((stats.input_amax, stats.down_amax, stats.out_amax), column[:3], strict=True):
                amax_of[call.expert] = max(amax_of[call.expert], largest)
        real = routed.expert if self._real is None else routed.expert[self._real.view(-1)[routed.token]]
        stats.seen[numbers] = torch.bincount(real, minlength=len(numbers)).cpu().numpy()
        _add_up(stats, numbers, routed, self._rows)


class _Routed(NamedTuple):
    """Tokens of all experts: expert row, token, gate weight, softmax weight, output norm."""

    expert: torch.Tensor
    token: torch.Tensor
    g: torch.Tensor
    p: torch.Tensor
    n: torch.Tensor


def _add_up(stats: ExpertStats, numbers: list[int], routed: _Routed, rows: Rows) -> None:
    """Compute the sums per expert and domain: of parts of `SUM_ROWS` rows, added in order."""
    device = routed.token.device
    shape = len(numbers), -(-len(rows.tokens) // SUM_ROWS), len(rows.names)
    domains = torch.from_numpy(rows.domains.reshape(-1).astype(np.int64)).to(device)
    domain = domains[routed.token]
    part = routed.token // (SUM_ROWS * rows.tokens.shape[1])
    cells = shape[0] * shape[1] * shape[2]
    # Padding has the last cell.
    cell = torch.where(domain < 0, cells, (routed.expert * shape[1] + part) * shape[2] + domain)
    order = torch.argsort(cell * rows.tokens.size + routed.token)
    lengths = torch.bincount(cell, minlength=cells + 1)
    g, p, n = routed.g[order].double(), routed.p[order].double(), routed.n[order]
    values = {"g": g, "g2": g * g, "n": n, "n2": n * n, "gn": g * n, "g2n": g * g * n, "g2n2": (g * n) ** 2}
    values |= {"p": p, "pn": p * n}

    def reduced(value: torch.Tensor, how: str) -> Any:
        cell_values = torch.segment_reduce(value, how, lengths=lengths, initial=0.0)
        return cell_values[:-1].cpu().numpy().reshape(shape)

    stats.count[numbers] = lengths[:-1].cpu().numpy().reshape(shape).sum(axis=1)
    for name in SUMS:
        for part_sums in np.moveaxis(reduced(values[name], "sum"), 1, 0):
            stats.sums[name][numbers] += part_sums
    for name in ("n", "gn"):
        stats.maxes[name][numbers] = reduced(values[name], "max").max(axis=1)
