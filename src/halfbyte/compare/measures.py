"""Measures of a comparison: FP64 sums over hidden states, and predictions from FP32 logits with an FP64 softmax.

Only real tokens count. A token predicts the next token of its row if that belongs to the same document.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from halfbyte.calibrate.token_rows import Rows
from halfbyte.compare.report import Documents, Positions
from halfbyte.forward.embedding_and_head import Head
from halfbyte.forward.ordered_threads import in_order

_LOGITS = 1 << 24  # FP64 logits of one model at a time: 134 MB
LOGITS_ON_DEVICE = 1 << 26  # 537 MB, in about six copies
_TOKENS = 512


class Difference(NamedTuple):
    """Sums over tokens."""

    error: float  # of squares of a - b
    signal: float  # of squares of a
    cosine: float
    tokens: int

    @property
    def relative_error(self) -> float | None:
        """Return ||a - b|| / ||a||; None if a is zero and b is not."""
        if self.error == 0:
            return 0.0
        return float(np.sqrt(self.error / self.signal)) if self.signal else None

    @property
    def mean_cosine(self) -> float:
        """Return the mean cosine over tokens."""
        return self.cosine / self.tokens


def difference(
    a: torch.Tensor, b: torch.Tensor, real: torch.Tensor, chunks: Sequence[slice], threads: int
) -> Difference:
    """Compare hidden states [R, L, D] over the real tokens; the sums do not depend on the number of threads."""

    @torch.no_grad()
    def work(chunk: slice) -> Difference:
        x, y = (side[chunk][real[chunk]].double() for side in (a, b))
        xx, yy, xy = (x * x).sum(-1), (y * y).sum(-1), (x * y).sum(-1)
        size = (xx * yy).sqrt()  # exact for equal inputs, so that equal tokens have a cosine of exactly 1
        cosine = torch.where(size > 0, xy / size, (xx == yy).double())
        return Difference(float(((x - y) ** 2).sum(-1).sum()), float(xx.sum()), float(cosine.sum()), len(x))

    parts = list(in_order(work, chunks, threads))
    return Difference(*(sum(part[at] for part in parts) for at in range(3)), sum(part.tokens for part in parts))  # type: ignore[arg-type]


class Choices:
    """Observer that records which tokens are routed to which experts."""

    def __init__(self, tokens: int, experts: int, device: str = "cpu") -> None:
        self.experts = experts
        self._chosen = torch.zeros((tokens, experts), dtype=torch.bool, device=device)

    def __call__(
        self,
        expert: int,
        tokens: torch.Tensor,
        gate_weights: torch.Tensor,
        given: torch.Tensor,
        act: torch.Tensor,
        out: torch.Tensor,
    ) -> None:
        """Record the tokens of an expert."""
        del gate_weights, given, act, out
        self._chosen[:, expert].index_fill_(0, tokens, True)

    def agreement(self, other: Choices, real: torch.Tensor) -> float:
        """Return the share of (token, expert) pairs that another router has too."""
        own, others = self._chosen[real], other._chosen[real]
        return int((own & others).sum()) / int(own.sum())


@dataclass(frozen=True, slots=True, eq=False)
class Predicting:
    """The predicting tokens: their positions, targets and documents."""

    at: torch.Tensor  # [P], into all R x L tokens
    target: torch.Tensor  # [P]
    document: NDArray[np.int64]  # [P], from 0 on
    numbers: NDArray[np.int64]  # [D], document numbers
    domains: NDArray[np.int64]  # [D]
    position: NDArray[np.int64]  # [P], number of preceding tokens of the same document and row


def predicting(rows: Rows, scored: NDArray[np.bool_] | None = None) -> Predicting:
    """Find the predicting tokens; with `scored` [R, L], only those whose target is scored."""
    together = rows.real[:, :-1] & rows.real[:, 1:] & (rows.documents[:, :-1] == rows.documents[:, 1:])
    row, column = np.nonzero(together if scored is None else together & scored[:, 1:])
    numbers, first, document = np.unique(rows.documents[row, column], return_index=True, return_inverse=True)
    return Predicting(
        at=torch.from_numpy(row * rows.tokens.shape[1] + column),
        target=torch.from_numpy(rows.tokens[row, column + 1].astype(np.int64)),
        document=document.astype(np.int64),
        numbers=numbers.astype(np.int64),
        domains=rows.domains[row[first], column[first]].astype(np.int64),
        position=(column - _begins(rows)[row, column]).astype(np.int64),
    )


def _begins(rows: Rows) -> NDArray[np.int64]:
    """Return for each token the column where its document starts in the row."""
    columns: NDArray[np.int64] = np.indices(rows.tokens.shape)[1]
    other = np.ones(rows.tokens.shape, np.bool_)
    other[:, 1:] = rows.documents[:, 1:] != rows.documents[:, :-1]
    return np.maximum.accumulate(np.where(other, columns, 0), axis=1)


def predict(
    states: Sequence[torch.Tensor], heads: Sequence[Head], tokens: Predicting, words: int, threads: int
) -> list[Documents]:
    """Compare the predictions of the first model with those of each other model, by document."""
    flat = [state.view(-1, state.shape[-1]) for state in states]
    device = states[0].device
    step = max(1, min(_TOKENS, (LOGITS_ON_DEVICE if device.type == "cuda" else _LOGITS) // words))
    size = len(tokens.at)
    all_at, targets = tokens.at.to(device), tokens.target.to(device)
    # Allocated first, because small long-lived arrays between large temporary ones would fragment memory.
    losses = np.empty((len(states), size))
    kl, same = (np.empty((len(states) - 1, size)) for _ in range(2))

    @torch.no_grad()
    def work(start: int) -> None:
        here = slice(start, start + step)
        at, target = all_at[here], targets[here, None]

        def log_probabilities(side: int) -> torch.Tensor:
            logp = heads[side].logits(flat[side][at], precise=True).double().log_softmax(-1)
            losses[side, here] = -logp.gather(1, target)[:, 0].cpu().numpy()
            return logp

        first = log_probabilities(0)
        probabilities, best = first.exp(), first.argmax(-1)
        for side in range(1, len(states)):
            second = log_probabilities(side)
            same[side - 1, here] = (second.argmax(-1) == best).cpu().numpy()
            kl[side - 1, here] = second.sub_(first).neg_().mul_(probabilities).sum(-1).cpu().numpy()

    for _ in in_order(work, range(0, size, step), threads):
        pass
    count = len(tokens.numbers)

    def by_document(values: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.bincount(tokens.document, values, count).astype(np.float64)

    sizes = np.bincount(tokens.document, minlength=count).astype(np.int64)
    loss = [by_document(values) for values in losses]
    return [
        Documents(
            tokens.numbers,
            tokens.domains,
            sizes,
            by_document(kl[at]),
            by_document(same[at]),
            loss[0],
            nll,
            positions=by_position(tokens.position, kl[at]),
        )
        for at, nll in enumerate(loss[1:])
    ]


def by_position(position: NDArray[np.int64], kl: NDArray[np.float64]) -> Positions:
    """Group tokens by the power of two of their position: 0, 1, 2 to 3, 4 to 7, and so on."""
    power = np.frexp(position.astype(np.float64))[1]  # 0 for 0, else one more than floor(log2)
    count = int(power.max(initial=0)) + 1
    begin = np.where(np.arange(count) > 0, 2 ** np.maximum(np.arange(count) - 1, 0), 0)
    tokens = np.bincount(power, minlength=count)
    return Positions(begin.astype(np.int64), tokens.astype(np.int64), np.bincount(power, kl, count).astype(np.float64))
