"""Look at a layer while it runs on a device, without ever waiting for it: numbers stay there until the layer is done.

What is measured is what `calibrate.observe` measures; sums are made on the device, each cell's in an order that the
tokens decide.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch

from halfbyte.calibrate.observe import HEADS_FIRST, not_finite
from halfbyte.calibrate.routing import Routing
from halfbyte.calibrate.rows import Rows
from halfbyte.calibrate.stats import SUMS, ExpertStats, LayerStats
from halfbyte.calibrate.sums import SUM_ROWS
from halfbyte.forward.layer import Look, Routed
from halfbyte.forward.softmax import softmax_weights
from halfbyte.numerics.gpu.combine import combine

_linalg: Any = torch.linalg  # whose functions say nothing of their types


def _amax(tensor: torch.Tensor) -> torch.Tensor:
    return _linalg.vector_norm(tensor, ord=float("inf"))


class _Turn(NamedTuple):
    """What an expert did: its tokens with their weights, what it was given at most, norms and amax of its outputs."""

    expert: int
    tokens: torch.Tensor
    weights: torch.Tensor
    given: torch.Tensor
    act: torch.Tensor
    norms: torch.Tensor
    largest: torch.Tensor


class DeviceObserver:
    """What is measured in one layer; `finish` waits for the device and returns it."""

    def __init__(self, layer: int, rows: Rows, experts: int, device: torch.device) -> None:
        self._layer, self._rows, self._experts, self._device = layer, rows, experts, device
        self._largest: dict[str, torch.Tensor] = {}
        self._turns: list[_Turn] = []
        self._softmax = Routing()
        self._added: tuple[torch.Tensor, torch.Tensor] | None = None
        counts = rows.left_padded or bool(rows.real.all())  # padding that flows through a padded model counts
        self._real = None if counts else torch.from_numpy(rows.real).to(device)

    def look(self, chunk: slice) -> Look:
        """Return what sees the inputs of linears, keys and values of some rows."""
        real = self._real[chunk] if self._real is not None and not self._rows.real[chunk].all() else None

        def look(name: str, tensor: torch.Tensor) -> None:
            if real is not None:
                tensor = (tensor.transpose(1, 2) if name in HEADS_FIRST else tensor).reshape(*real.shape, -1)[real]
            if tensor.numel():
                found = _amax(tensor)
                before = self._largest.get(name)
                self._largest[name] = found if before is None else torch.maximum(before, found)

        return look

    def routes(self, chunk: slice, routed: Routed) -> None:
        """See how the tokens of some rows are routed."""
        self._softmax.tell(chunk, routed.indices, softmax_weights(routed.logits, routed.indices))

    def add(self, total: torch.Tensor, tokens: torch.Tensor, weights: torch.Tensor, out: torch.Tensor) -> None:
        """Add an expert's outputs to the sums, and keep what is to be known of them."""
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
        """See what an expert did with its tokens."""
        assert self._added is not None
        norms, largest = self._added
        if self._real is not None:
            # Padding is set to zero instead of taken out, whose number the device would have to be asked for.
            kept = self._real.view(-1)[tokens]
            given, act = (torch.where(kept[:, None], tensor, 0) for tensor in (given, act))
            largest = torch.where(kept, largest, 0)
        self._turns.append(_Turn(expert, tokens, gate_weights, _amax(given), _amax(act), norms, largest))

    def finish(self) -> LayerStats:
        """Return what was measured; waits for the device."""
        stats = LayerStats({name: float(found) for name, found in self._largest.items()})
        for name, amax in stats.input_amax.items():
            if not np.isfinite(amax):
                raise not_finite(self._layer, name)
        if self._experts:
            stats.experts = ExpertStats.empty(self._experts, len(self._rows.names))
            if self._turns:
                self._finish_experts(stats.experts)
        return stats

    def _finish_experts(self, stats: ExpertStats) -> None:
        numbers = list(dict.fromkeys(turn.expert for turn in self._turns))  # one with many tokens has several turns
        rows = {number: row for row, number in enumerate(numbers)}
        lengths = torch.tensor([len(turn.tokens) for turn in self._turns], device=self._device)
        experts = torch.tensor([rows[turn.expert] for turn in self._turns], device=self._device)
        softmax = self._softmax.by_expert()  # all tokens of an expert, whose turns follow each other
        routed = _Routed(
            expert=torch.repeat_interleave(experts, lengths),
            token=torch.cat([turn.tokens for turn in self._turns]),
            g=torch.cat([turn.weights for turn in self._turns]),
            p=torch.cat([softmax[number][1] for number in numbers]),
            n=torch.cat([turn.norms for turn in self._turns]),
        )
        amax = torch.stack(
            [
                torch.stack([turn.given for turn in self._turns]).float(),
                torch.stack([turn.act for turn in self._turns]).float(),
                torch.stack([turn.largest.max() for turn in self._turns]),
                torch.stack([turn.norms.max() for turn in self._turns]).float(),  # which shows what is not finite
            ]
        )
        found: Any = amax.cpu().numpy()
        for turn, column in zip(self._turns, found.T, strict=True):
            if not np.isfinite(column).all():
                raise not_finite(self._layer, f"mlp.experts.{turn.expert}")
            for amax_of, largest in zip((stats.input_amax, stats.down_amax, stats.out_amax), column[:3], strict=True):
                amax_of[turn.expert] = max(amax_of[turn.expert], largest)
        real = routed.expert if self._real is None else routed.expert[self._real.view(-1)[routed.token]]
        stats.seen[numbers] = torch.bincount(real, minlength=len(numbers)).cpu().numpy()
        _add_up(stats, numbers, routed, self._rows)


class _Routed(NamedTuple):
    """Routed tokens of all experts."""

    expert: torch.Tensor
    token: torch.Tensor
    g: torch.Tensor
    p: torch.Tensor
    n: torch.Tensor


def _add_up(stats: ExpertStats, numbers: list[int], routed: _Routed, rows: Rows) -> None:
    """Sums per expert and domain, of parts of `SUM_ROWS` rows that are added in their order."""
    device = routed.token.device
    shape = len(numbers), -(-len(rows.tokens) // SUM_ROWS), len(rows.names)
    domains = torch.from_numpy(rows.domains.reshape(-1).astype(np.int64)).to(device)
    domain = domains[routed.token]
    part = routed.token // (SUM_ROWS * rows.tokens.shape[1])
    cells = shape[0] * shape[1] * shape[2]
    cell = torch.where(domain < 0, cells, (routed.expert * shape[1] + part) * shape[2] + domain)  # padding comes last
    order = torch.argsort(cell * rows.tokens.size + routed.token)
    lengths = torch.bincount(cell, minlength=cells + 1)
    g, p, n = routed.g[order].double(), routed.p[order].double(), routed.n[order]
    values = {"g": g, "g2": g * g, "n": n, "n2": n * n, "gn": g * n, "g2n": g * g * n, "g2n2": (g * n) ** 2}
    values |= {"p": p, "pn": p * n}

    def reduced(value: torch.Tensor, how: str) -> Any:
        found = torch.segment_reduce(value, how, lengths=lengths, initial=0.0)
        return found[:-1].cpu().numpy().reshape(shape)

    stats.count[numbers] = lengths[:-1].cpu().numpy().reshape(shape).sum(axis=1)
    for name in SUMS:
        for one in np.moveaxis(reduced(values[name], "sum"), 1, 0):
            stats.sums[name][numbers] += one
    for name in ("n", "gn"):
        stats.maxes[name][numbers] = reduced(values[name], "max").max(axis=1)
