"""Routed experts from decoded weights: each is decoded once, sees only its own tokens, and is added in its turn.

The sums are those of transformers' eager experts, bit for bit: expert by expert in ascending order, each output times
its weight in FP32, rounded to the model's dtype, added in the model's dtype.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol, cast

import numpy as np
import torch
from torch.nn import functional

from halfbyte.forward.threads import in_order

Weights = tuple[torch.Tensor, torch.Tensor, torch.Tensor]  # gate [F, D], up [F, D], down [D, F]
Expert = Callable[[int], Weights]
Change = Callable[[int, str, torch.Tensor], torch.Tensor]  # expert, "gate_up" or "down", the input -> what is taken
Add = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], None]  # to sums [T, D]: tokens, weights, out
GATE_UP, DOWN = "gate_up", "down"


class Observe(Protocol):
    """Called for each expert that has tokens, in ascending order, on the thread that called `run_experts`."""

    def __call__(
        self,
        expert: int,
        tokens: torch.Tensor,  # [n]
        gate_weights: torch.Tensor,  # [n], FP32
        given: torch.Tensor,  # [n, D]: what gate_proj and up_proj are given
        act: torch.Tensor,  # [n, F]: what down_proj is given
        out: torch.Tensor,  # [n, D]: what it returns, before its weight
    ) -> None:
        """Take what is of interest; the tensors are the observer's."""
        ...


class _Turn(NamedTuple):
    expert: int
    tokens: torch.Tensor
    weights: torch.Tensor


class _Done(NamedTuple):
    turn: _Turn
    given: torch.Tensor
    act: torch.Tensor
    out: torch.Tensor
    weighted: torch.Tensor | None


@torch.no_grad()
def run_experts(  # noqa: PLR0913 - keyword-only from the weights on
    x: torch.Tensor,
    indices: torch.Tensor,
    weights: torch.Tensor,
    expert: Expert,
    *,
    threads: int = 1,
    observe: Observe | None = None,
    change: Change | None = None,
    add: Add | None = None,
    most: int | None = None,
) -> torch.Tensor:
    """Return the sum [T, D] of the routed experts' outputs for tokens x [T, D], chosen by indices and weights [T, k].

    `expert` gives decoded weights in the dtype of x, once for every expert that has tokens, `threads` at a time. `add`
    is another way to do the same sums. An expert with more than `most` tokens has as many turns as it needs.
    """

    @torch.no_grad()  # which is each thread's own
    def work(turn: _Turn) -> _Done:
        gate, up, down = expert(turn.expert)
        given = x[turn.tokens]
        if change:
            given = change(turn.expert, GATE_UP, given)
        act = functional.silu(functional.linear(given, gate)) * functional.linear(given, up)
        if change:
            act = change(turn.expert, DOWN, act)
        out = functional.linear(act, down)
        return _Done(turn, given, act, out, None if add else (out * turn.weights[:, None]).to(x.dtype))

    total = torch.zeros_like(x)
    for done in in_order(work, pieces(turns(indices, weights), most), threads):
        tokens = done.turn.tokens
        if done.weighted is not None:
            total[tokens] += done.weighted  # an expert has a token once at most
        elif add:
            add(total, tokens, done.turn.weights, done.out)
        if observe:
            observe(done.turn.expert, tokens, done.turn.weights, done.given, done.act, done.out)
    return total


def turns(indices: torch.Tensor, weights: torch.Tensor) -> list[_Turn]:
    """Return the experts that have tokens, ascending, each with its tokens in transformers' order."""
    # By choice, then by token: FP32 products of a handful of rows can depend on the order of the rows.
    if indices.is_cuda:
        return _turns_on_device(indices, weights)
    chosen = indices.t().reshape(-1).cpu().numpy()
    order = np.argsort(chosen.astype(np.uint16), kind="stable")  # 16 bits: NumPy then sorts by digits
    experts, starts = np.unique(chosen[order], return_index=True)
    choices, tokens = np.divmod(order, indices.shape[0])
    found: list[_Turn] = []
    for expert, start, stop in zip(experts.tolist(), starts, [*starts[1:], len(order)], strict=True):
        mine, choice = (torch.from_numpy(part[start:stop]).to(indices.device) for part in (tokens, choices))
        found.append(_Turn(expert, mine, weights[mine, choice]))
    return found


def pieces(found: list[_Turn], most: int | None) -> list[_Turn]:
    """Split turns of more than `most` tokens; each piece stays in its order."""
    if most is None:
        return found
    return [
        _Turn(turn.expert, turn.tokens[start : start + most], turn.weights[start : start + most])
        for turn in found
        for start in range(0, len(turn.tokens), most)
    ]


def _turns_on_device(indices: torch.Tensor, weights: torch.Tensor) -> list[_Turn]:
    """Sort where the indices are: only the number of tokens of each expert comes to the host."""
    chosen, order = torch.sort(indices.t().reshape(-1), stable=True)
    tokens = order % indices.shape[0]
    sorted_weights = weights.t().reshape(-1)[order]
    counts = cast("list[int]", torch.bincount(chosen).tolist())
    starts = np.cumsum([0, *counts[:-1]]).tolist()
    return [
        _Turn(expert, tokens[start : start + count], sorted_weights[start : start + count])
        for expert, (start, count) in enumerate(zip(starts, counts, strict=True))
        if count
    ]
