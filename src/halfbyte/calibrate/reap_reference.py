"""Statistics of the public REAP code, which selects experts differently from the model.

It takes the largest logits, ignoring the router's correction bias and groups, and weights them with a softmax. It
therefore routes tokens to experts that the model does not. Experts run on these tokens in addition to the model's
forward pass, which is not affected.
"""

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from halfbyte.calibrate.expert_sums import Cells
from halfbyte.calibrate.routing import Routing, softmax_weights
from halfbyte.calibrate.stats import ExpertStats
from halfbyte.calibrate.token_rows import Rows
from halfbyte.forward.experts import Expert
from halfbyte.forward.model import Routed
from halfbyte.forward.ordered_threads import in_order


class _Norms(NamedTuple):
    """Norms of an expert's outputs."""

    tokens: NDArray[np.int64]
    n: NDArray[np.float64]


class _Selected(NamedTuple):
    """Real tokens routed to an expert by the public code, and their weights."""

    tokens: NDArray[np.int64]
    p: NDArray[np.float64]


class PublicSelection:
    """The public code's routing and the output norms of the experts for it."""

    def __init__(self, rows: Rows) -> None:
        self._rows, self._routing = rows, Routing()
        self._seen: dict[int, _Norms] = {}

    def routes(self, chunk: slice, routed: Routed) -> None:
        """Select experts for the tokens of a chunk of rows."""
        indices = routed.logits.topk(routed.indices.shape[1]).indices
        self._routing.add(chunk, indices, softmax_weights(routed.logits, indices))

    def see(self, expert: int, tokens: NDArray[np.int64], n: NDArray[np.float64]) -> None:
        """Record the output norms of an expert for the tokens that the model routed to it."""
        self._seen[expert] = _Norms(tokens, n)

    @cached_property
    def _selected(self) -> dict[int, _Selected]:
        selected: dict[int, _Selected] = {}
        for expert, (tokens, weights) in self._routing.by_expert().items():
            places = tokens.numpy()
            real = self._rows.real.reshape(-1)[places]
            selected[expert] = _Selected(places[real], weights.double().numpy()[real])
        return selected

    def finish(self, stats: ExpertStats, inputs: torch.Tensor, expert: Expert, threads: int) -> None:
        """Run experts on the tokens [T, D] that only the public code routes to them, then compute all sums."""
        empty = _Norms(np.zeros(0, np.int64), np.zeros(0))
        seen = {number: self._seen.get(number, empty) for number in self._selected}
        missing = {
            number: np.setdiff1d(selected.tokens, seen[number].tokens) for number, selected in self._selected.items()
        }

        @torch.no_grad()
        def norms(number: int) -> NDArray[np.float64]:
            if not len(missing[number]):
                return empty.n
            gate, up, down = expert(number)
            x = inputs[torch.from_numpy(missing[number])]
            out = functional.linear(functional.silu(functional.linear(x, gate)) * functional.linear(x, up), down)
            return out.double().square().sum(-1).sqrt().numpy()

        assert stats.count_public is not None
        for number, missing_norms in zip(missing, in_order(norms, missing, threads), strict=True):
            n = np.zeros(self._rows.tokens.size)
            n[seen[number].tokens], n[missing[number]] = seen[number].n, missing_norms
            tokens, p = self._selected[number]
            cells = Cells([number], np.zeros(len(tokens), np.int64), tokens, self._rows)
            stats.count_public[number] = cells.count()[0]
            stats.sums["p_public"][number] = cells.total(p[cells.order])[0]
            stats.sums["pn_public"][number] = cells.total((p * n[tokens])[cells.order])[0]
