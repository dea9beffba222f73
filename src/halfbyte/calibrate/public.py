"""What the public REAP code would measure by itself: its own selection of experts, which is not the model's.

It takes the largest logits, whatever the router's correction bias and groups say, and weighs them by a softmax. So it
asks experts about tokens that they never see when the model runs: those are shown to them beside the model's forward,
which they do not change.
"""

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from halfbyte.calibrate.routing import Routing
from halfbyte.calibrate.rows import Rows
from halfbyte.calibrate.stats import ExpertStats
from halfbyte.calibrate.sums import Cells
from halfbyte.forward.experts import Expert
from halfbyte.forward.layer import Routed
from halfbyte.forward.softmax import softmax_weights
from halfbyte.forward.threads import in_order


class _Norms(NamedTuple):
    """Of an expert's outputs for some tokens."""

    tokens: NDArray[np.int64]
    n: NDArray[np.float64]


class _Wanted(NamedTuple):
    """Real tokens that an expert is asked about, and their weights."""

    tokens: NDArray[np.int64]
    p: NDArray[np.float64]


class PublicSelection:
    """The tokens that the public code would give to each expert, and what the experts make of them."""

    def __init__(self, rows: Rows) -> None:
        self._rows, self._routing = rows, Routing()
        self._seen: dict[int, _Norms] = {}

    def routes(self, chunk: slice, routed: Routed) -> None:
        """Select experts for the tokens of some rows."""
        indices = routed.logits.topk(routed.indices.shape[1]).indices
        self._routing.tell(chunk, indices, softmax_weights(routed.logits, indices))

    def see(self, expert: int, tokens: NDArray[np.int64], n: NDArray[np.float64]) -> None:
        """Take the norms of what an expert made of the tokens that the model gave it."""
        self._seen[expert] = _Norms(tokens, n)

    @cached_property
    def _wanted(self) -> dict[int, _Wanted]:
        found: dict[int, _Wanted] = {}
        for expert, (tokens, weights) in self._routing.by_expert().items():
            places = tokens.numpy()
            real = self._rows.real.reshape(-1)[places]
            found[expert] = _Wanted(places[real], weights.double().numpy()[real])
        return found

    def finish(self, stats: ExpertStats, given: torch.Tensor, expert: Expert, threads: int) -> None:
        """Show experts the tokens [T, D] that only this selection gives them; then add everything up."""
        nothing = _Norms(np.zeros(0, np.int64), np.zeros(0))
        seen = {number: self._seen.get(number, nothing) for number in self._wanted}
        missing = {number: np.setdiff1d(wanted.tokens, seen[number].tokens) for number, wanted in self._wanted.items()}

        @torch.no_grad()
        def norms(number: int) -> NDArray[np.float64]:
            if not len(missing[number]):
                return nothing.n
            gate, up, down = expert(number)
            x = given[torch.from_numpy(missing[number])]
            out = functional.linear(functional.silu(functional.linear(x, gate)) * functional.linear(x, up), down)
            return out.double().square().sum(-1).sqrt().numpy()

        assert stats.count_public is not None
        for number, found in zip(missing, in_order(norms, missing, threads), strict=True):
            n = np.zeros(self._rows.tokens.size)
            n[seen[number].tokens], n[missing[number]] = seen[number].n, found
            tokens, p = self._wanted[number]
            cells = Cells([number], np.zeros(len(tokens), np.int64), tokens, self._rows)
            stats.count_public[number] = cells.count()[0]
            stats.sums["p_public"][number] = cells.total(p[cells.order])[0]
            stats.sums["pn_public"][number] = cells.total((p * n[tokens])[cells.order])[0]
