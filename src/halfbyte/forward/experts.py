"""Run routed experts from decoded weights; each expert is decoded once and gets only its own tokens.

The sums equal those of transformers' eager experts bit for bit: experts in ascending order, each output multiplied by
its weight in FP32, rounded to the model's dtype, and added in the model's dtype.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol, cast

import numpy as np
import torch
from torch.nn import functional

from halfbyte.forward.ordered_threads import in_order

Weights = tuple[torch.Tensor, torch.Tensor, torch.Tensor]  # gate [F, D], up [F, D], down [D, F]
Expert = Callable[[int], Weights]
Change = Callable[[int, str, torch.Tensor], torch.Tensor]  # expert, "gate_up" or "down", input -> replacement
Add = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], None]  # sums [T, D], tokens, weights, out
GATE_UP, DOWN = "gate_up", "down"


class Observe(Protocol):
    """Called for each expert that has tokens, in ascending order, on the thread that called `run_experts`."""

    def __call__(
        self,
        expert: int,
        tokens: torch.Tensor,  # [n]
        gate_weights: torch.Tensor,  # [n], FP32
        given: torch.Tensor,  # [n, D]: inputs of gate and up
        act: torch.Tensor,  # [n, F]: inputs of down
        out: torch.Tensor,  # [n, D]: outputs, before the router weight
    ) -> None:
        """Observe an expert; the observer owns the tensors."""
        ...


class _Turn(NamedTuple):
    expert: int
    tokens: torch.Tensor
    weights: torch.Tensor


class _Result(NamedTuple):
    turn: _Turn
    inputs: torch.Tensor
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
    """Return the weighted sum [T, D] of the routed experts' outputs for tokens x [T, D], with routing [T, k].

    `expert` returns decoded weights in the dtype of x and is called once per expert with tokens, `threads` at a time.
    `add` replaces the default summation. An expert with more than `most` tokens runs on them in several pieces.
    """

    @torch.no_grad()  # applies per thread
    def work(turn: _Turn) -> _Result:
        gate, up, down = expert(turn.expert)
        inputs = x[turn.tokens]
        if change:
            inputs = change(turn.expert, GATE_UP, inputs)
        act = functional.silu(functional.linear(inputs, gate)) * functional.linear(inputs, up)
        if change:
            act = change(turn.expert, DOWN, act)
        out = functional.linear(act, down)
        return _Result(turn, inputs, act, out, None if add else (out * turn.weights[:, None]).to(x.dtype))

    total = torch.zeros_like(x)
    for result in in_order(work, pieces(turns(indices, weights), most), threads):
        turn = result.turn
        if result.weighted is not None:
            total[turn.tokens] += result.weighted  # tokens of one expert are unique
        elif add:
            add(total, turn.tokens, turn.weights, result.out)
        if observe:
            observe(turn.expert, turn.tokens, turn.weights, result.inputs, result.act, result.out)
    return total


def turns(indices: torch.Tensor, weights: torch.Tensor) -> list[_Turn]:
    """Return the experts with tokens, ascending, each with its tokens in transformers' order."""
    # Sorted by choice, then by token: FP32 products of few rows can depend on the order of the rows.
    if indices.is_cuda:
        return _turns_on_device(indices, weights)
    chosen = indices.t().reshape(-1).cpu().numpy()
    order = np.argsort(chosen.astype(np.uint16), kind="stable")  # NumPy uses radix sort for 16 bits
    experts, starts = np.unique(chosen[order], return_index=True)
    choices, tokens = np.divmod(order, indices.shape[0])
    result: list[_Turn] = []
    for expert, start, stop in zip(experts.tolist(), starts, [*starts[1:], len(order)], strict=True):
        token, choice = (torch.from_numpy(part[start:stop]).to(indices.device) for part in (tokens, choices))
        result.append(_Turn(expert, token, weights[token, choice]))
    return result


def pieces(all_turns: list[_Turn], most: int | None) -> list[_Turn]:
    """Split turns of more than `most` tokens, keeping the order."""
    if most is None:
        return all_turns
    return [
        _Turn(turn.expert, turn.tokens[start : start + most], turn.weights[start : start + most])
        for turn in all_turns
        for start in range(0, len(turn.tokens), most)
    ]


def _turns_on_device(indices: torch.Tensor, weights: torch.Tensor) -> list[_Turn]:
    """Sort on the device; only the token count of each expert is copied to the host."""
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
