"""Look at a layer while it runs on a device, without ever waiting for it: numbers stay there until the layer is done.

What is measured is what `calibrate.observe` measures.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from halfbyte.calibrate.observe import HEADS_FIRST, not_finite
from halfbyte.calibrate.rows import Rows
from halfbyte.calibrate.stats import ExpertStats, LayerStats
from halfbyte.calibrate.sums import Routed, add_routed
from halfbyte.forward.layer import Look

_linalg: Any = torch.linalg  # whose functions say nothing of their types


def _amax(tensor: torch.Tensor) -> torch.Tensor:
    low, high = torch.aminmax(tensor)
    return torch.maximum(-low, high).float()


class DeviceObserver:
    """What is measured in one layer; `finish` waits for the device and returns it."""

    def __init__(self, layer: int, rows: Rows, experts: int, device: torch.device) -> None:
        self._layer, self._rows, self._experts, self._device = layer, rows, experts, device
        self._largest: dict[str, torch.Tensor] = {}
        self._of_experts: list[tuple[int, torch.Tensor]] = []  # amax of given, act and out
        self._routed: list[tuple[int, torch.Tensor, torch.Tensor, torch.Tensor]] = []  # tokens, weights, norms
        self._real = None if rows.left_padded else torch.from_numpy(rows.real).to(device)

    def look(self, chunk: slice) -> Look:
        """Return what sees the inputs of linears, keys and values of some rows."""
        real = self._real[chunk] if self._real is not None else None
        whole = real is None or bool(self._rows.real[chunk].all())

        def look(name: str, tensor: torch.Tensor) -> None:
            if real is not None and not whole:
                tensor = (tensor.transpose(1, 2) if name in HEADS_FIRST else tensor).reshape(*real.shape, -1)[real]
            if tensor.numel():
                found = _amax(tensor)
                before = self._largest.get(name)
                self._largest[name] = found if before is None else torch.maximum(before, found)

        return look

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
        if self._real is not None:
            kept = self._real.view(-1)[tokens]
            # Padding is set to zero instead of taken out, whose number the device would have to be asked for.
            given, act, out = (torch.where(kept[:, None], tensor, 0) for tensor in (given, act, out))
        self._of_experts.append((expert, torch.stack([_amax(given), _amax(act), _amax(out)])))
        norms: torch.Tensor = _linalg.vector_norm(out, dim=-1, dtype=torch.float64)
        self._routed.append((expert, tokens, gate_weights, norms))

    def finish(self) -> LayerStats:
        """Return what was measured; waits for the device."""
        stats = LayerStats({name: float(found) for name, found in self._largest.items()})
        for name, amax in stats.input_amax.items():
            if not np.isfinite(amax):
                raise not_finite(self._layer, name)
        if self._experts:
            stats.experts = self._finish_experts(ExpertStats.empty(self._experts, len(self._rows.names)))
        return stats

    def _finish_experts(self, stats: ExpertStats) -> ExpertStats:
        if not self._of_experts:
            return stats
        amax = torch.stack([found for _, found in self._of_experts]).cpu().numpy()
        for (expert, _), (given, act, out) in zip(self._of_experts, amax, strict=True):
            if not np.isfinite([given, act, out]).all():
                raise not_finite(self._layer, f"mlp.experts.{expert}")
            stats.input_amax[expert], stats.down_amax[expert], stats.out_amax[expert] = given, act, out
        numbers, *columns = zip(*self._routed, strict=True)
        tokens, weights, norms = (torch.cat(list(column)).cpu().numpy() for column in columns)
        experts = np.repeat(np.arange(len(numbers)), [len(turn[1]) for turn in self._routed])
        if self._real is not None:
            kept = self._rows.real.reshape(-1)[tokens]
            experts, tokens, weights, norms = experts[kept], tokens[kept], weights[kept], norms[kept]
        stats.seen[list(numbers)] = np.bincount(experts, minlength=len(numbers))
        add_routed(stats, Routed(list(numbers), experts, tokens, weights.astype(np.float64), norms), self._rows)
        return stats
