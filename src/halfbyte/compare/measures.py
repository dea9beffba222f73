"""What is measured where: hidden states in FP64 sums, predictions from FP32 logits by an FP64 softmax.

Only real tokens count. A token predicts the next one of its row where that is of the same document; the last token of
a document predicts nothing, and so does the last one of a row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from halfbyte.calibrate.rows import Rows
from halfbyte.compare.report import Documents, Positions
from halfbyte.forward.ends import Head
from halfbyte.forward.threads import in_order

_LOGITS = 1 << 24  # of one model at a time in FP64: 134 MB
LOGITS_ON_DEVICE = 1 << 26  # 537 MB, and half a dozen like it
_TOKENS = 512


class Difference(NamedTuple):
    """Sums over tokens."""

    error: float  # of squares of a - b
    signal: float  # of squares of a
    cosine: float
    tokens: int

    @property
    def relative_error(self) -> float:
        """Return ||a - b|| / ||a||."""
        return 0.0 if self.error == 0 else float(np.sqrt(self.error / self.signal)) if self.signal else np.inf

    @property
    def mean_cosine(self) -> float:
        """Return the mean of the tokens' cosines."""
        return self.cosine / self.tokens


def difference(
    a: torch.Tensor, b: torch.Tensor, real: torch.Tensor, chunks: Sequence[slice], threads: int
) -> Difference:
    """Compare hidden states [R, L, D] over the real tokens; the sums do not depend on the threads."""

    @torch.no_grad()
    def work(chunk: slice) -> Difference:
        x, y = (side[chunk][real[chunk]].double() for side in (a, b))
        xx, yy, xy = (x * x).sum(-1), (y * y).sum(-1), (x * y).sum(-1)
        size = (xx * yy).sqrt()  # of a number with itself it is exactly the number: equal tokens have exactly 1
        cosine = torch.where(size > 0, xy / size, (xx == yy).double())
        return Difference(float(((x - y) ** 2).sum(-1).sum()), float(xx.sum()), float(cosine.sum()), len(x))

    parts = list(in_order(work, chunks, threads))
    return Difference(*(sum(part[at] for part in parts) for at in range(3)), sum(part.tokens for part in parts))  # type: ignore[arg-type]


class Choices:
    """Which experts saw which tokens: an observer of a layer's experts."""

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
        """Note who saw what."""
        del gate_weights, given, act, out
        self._chosen[:, expert].index_fill_(0, tokens, True)

    def alike(self, other: Choices, real: torch.Tensor) -> float:
        """Return the share of (token, choice) pairs that another router has too."""
        mine, theirs = self._chosen[real], other._chosen[real]
        return int((mine & theirs).sum()) / int(mine.sum())


@dataclass(frozen=True, slots=True, eq=False)
class Predicting:
    """The tokens that predict one: where they are among all, what comes next, and whose they are."""

    at: torch.Tensor  # [P], into all R x L tokens
    target: torch.Tensor  # [P]
    document: NDArray[np.int64]  # [P], from 0 on
    numbers: NDArray[np.int64]  # [D], the documents' own numbers
    domains: NDArray[np.int64]  # [D]
    position: NDArray[np.int64]  # [P], how many tokens of its text, in the same row, come before it


def predicting(rows: Rows, scored: NDArray[np.bool_] | None = None) -> Predicting:
    """Find the tokens that predict; with `scored` [R, L], only those that predict one of its tokens."""
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
    """Return for each token of a row where its text begins in that row."""
    columns: NDArray[np.int64] = np.indices(rows.tokens.shape)[1]
    other = np.ones(rows.tokens.shape, np.bool_)
    other[:, 1:] = rows.documents[:, 1:] != rows.documents[:, :-1]
    return np.maximum.accumulate(np.where(other, columns, 0), axis=1)


def predict(
    states: Sequence[torch.Tensor], heads: Sequence[Head], tokens: Predicting, words: int, threads: int
) -> list[Documents]:
    """Compare the predictions of the first of some models with those of each other, by document."""
    flat = [state.view(-1, state.shape[-1]) for state in states]
    device = states[0].device
    step = max(1, min(_TOKENS, (LOGITS_ON_DEVICE if device.type == "cuda" else _LOGITS) // words))
    size = len(tokens.at)
    all_at, targets = tokens.at.to(device), tokens.target.to(device)
    # Made before the work: small arrays that are kept among large ones that are not would split the memory for good.
    losses = np.empty((len(states), size))
    kl, same = (np.empty((len(states) - 1, size)) for _ in range(2))

    @torch.no_grad()
    def work(start: int) -> None:
        here = slice(start, start + step)
        at, target = all_at[here], targets[here, None]

        def surely(side: int) -> torch.Tensor:
            logp = heads[side].logits(flat[side][at], precise=True).double().log_softmax(-1)
            losses[side, here] = -logp.gather(1, target)[:, 0].cpu().numpy()
            return logp

        first = surely(0)
        likely, best = first.exp(), first.argmax(-1)
        for side in range(1, len(states)):
            second = surely(side)
            same[side - 1, here] = (second.argmax(-1) == best).cpu().numpy()
            kl[side - 1, here] = second.sub_(first).neg_().mul_(likely).sum(-1).cpu().numpy()

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
    """Put tokens together by the power of two of their position: 0, 1, 2 to 3, 4 to 7, and so on."""
    power = np.frexp(position.astype(np.float64))[1]  # 0 for 0, else one more than floor(log2)
    count = int(power.max(initial=0)) + 1
    begin = np.where(np.arange(count) > 0, 2 ** np.maximum(np.arange(count) - 1, 0), 0)
    tokens = np.bincount(power, minlength=count)
    return Positions(begin.astype(np.int64), tokens.astype(np.int64), np.bincount(power, kl, count).astype(np.float64))
