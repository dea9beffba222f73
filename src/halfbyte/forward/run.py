"""Run a layer on all tokens: attention by chunks of rows, experts on all tokens, then the rest by chunks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import torch

from halfbyte.forward.experts import Add, Change, Expert, Observe, run_experts
from halfbyte.forward.model import DecoderLayer, Hook, Routed
from halfbyte.forward.ordered_threads import in_order
from halfbyte.forward.positions import AttentionInputs


class Hidden(Protocol):
    """Hidden states [R, L, D]: a tensor, or an object that stores them elsewhere."""

    @property
    def shape(self) -> torch.Size:
        """Return R, L and D."""
        ...

    def new_empty(self, size: Sequence[int], /) -> torch.Tensor:
        """Return an uninitialized tensor on the device where layers run."""
        ...

    def __getitem__(self, rows: slice, /) -> torch.Tensor:
        """Return some rows on the device where layers run."""
        ...

    def __setitem__(self, rows: slice, value: torch.Tensor, /) -> None:
        """Replace some rows."""
        ...


ChunkInputs = Callable[[slice], AttentionInputs]
HookOf = Callable[[slice], Hook]
Routes = Callable[[slice, Routed], None]  # a chunk and its routing


def row_chunks(rows: int, size: int) -> list[slice]:
    """Split rows into chunks of a fixed size."""
    return [slice(start, min(start + size, rows)) for start in range(0, rows, size)]


def run_layer(  # noqa: PLR0913 - keyword-only from the experts on
    layer: DecoderLayer,
    hidden: Hidden,
    inputs_of: ChunkInputs,
    chunks: Sequence[slice],
    expert: Expert | None = None,
    *,
    threads: int = 1,
    hook_of: HookOf | None = None,
    routes: Routes | None = None,
    observe: Observe | None = None,
    change: Change | None = None,
    add: Add | None = None,
    most: int | None = None,
) -> torch.Tensor | None:
    """Replace hidden states [R, L, D] by those after the layer; return the inputs [T, D] of the routed experts.

    `hook_of` returns the hook of a chunk. `routes` is called with the routing of each chunk before any expert runs.
    Both are called from several threads. `most` limits the number of tokens an expert gets at a time.
    """

    x = hidden.new_empty(hidden.shape) if layer.is_moe else None

    def first_half(chunk: slice) -> tuple[torch.Tensor, torch.Tensor] | None:
        hook = hook_of(chunk) if hook_of else None
        h = layer.attention_part(hidden[chunk], inputs_of(chunk), hook)
        if x is None:
            hidden[chunk] = layer.mlp(h, hook)
            return None
        hidden[chunk] = h
        routed = layer.before_experts(h)
        x[chunk] = routed.x.view_as(h)
        if routes:
            routes(chunk, routed)
        return routed.indices, routed.weights

    routed = [part for part in in_order(first_half, chunks, threads) if part is not None]
    if x is None:
        return None
    assert expert is not None
    indices, weights = (torch.cat(parts) for parts in zip(*routed, strict=True))
    flat = x.view(-1, x.shape[-1])
    total = run_experts(
        flat, indices, weights, expert, threads=threads, observe=observe, change=change, add=add, most=most
    ).view_as(x)

    def second_half(chunk: slice) -> None:
        hook = hook_of(chunk) if hook_of else None
        hidden[chunk] = layer.after_experts(hidden[chunk], x[chunk], total[chunk], hook)

    for _ in in_order(second_half, chunks, threads):
        pass
    return flat
