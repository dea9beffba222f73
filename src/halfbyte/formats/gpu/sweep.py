"""The exact MSE sweep of NVFP4 block scales for stacks of experts, with the same result as the CPU for every block.

FP32 decides nearly all blocks (`sweep_screen` has the proof) and FP64 nearly all others (`sweep_exact`), both on the
device and asynchronously. The remaining few are on a list that `settle_int4` and `settle_bf16` read, which synchronizes
with the device, and decide in exact integers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from halfbyte.formats.gpu.blocks import (
    NVFP4_BLOCK,
    check_blocks,
    check_shape,
    check_stack,
    int4_group,
)
from halfbyte.formats.gpu.sweep_bf16 import screen_bf16
from halfbyte.formats.gpu.sweep_exact import settle_close
from halfbyte.formats.gpu.sweep_int4 import screen_int4
from halfbyte.formats.reference import int4
from halfbyte.formats.reference.floats import F32, bf16_to_f32
from halfbyte.formats.reference.sweep import best_scale

# Experts are swept in groups of some 16 million blocks, so that the list of close blocks takes at most 128 MiB.
_BLOCKS_AT_ONCE = 1 << 24
_UNDECIDED_LISTED = 1 << 16
# A warp runs until its last block is done, so larger tiles wait longer; two blocks per lane improve utilization.
_TILE, _WARPS = 64, 1
_CLOSE_TILE, _CLOSE_WARPS, _CLOSE_PROGRAMS = 32, 4, 1056


class Swept(NamedTuple):
    """Block scales as E4M3 bit patterns [E, N, K / 16], 0 where undecided, and the numbers of the undecided blocks.

    `undecided` is a list of fixed capacity with `count` (int32 [1]) valid entries. If `count` exceeds the capacity, use
    the zeros in `scale`. `close` counts the blocks that needed FP64.
    """

    scale: Tensor
    undecided: Tensor
    count: Tensor
    close: Tensor


def sweep_int4(packed: Tensor, scale: Tensor, amax: Tensor) -> Swept:
    """Sweep INT4 experts: codes int32 [E, N, K / 8], scales bf16 [E, N, K / group], amax f32 [E] of each scale group.

    No weight may exceed its amax.
    """
    blocks_of_group = int4_group(packed, scale) // NVFP4_BLOCK
    experts, rows, words = packed.shape
    source = scale.view(torch.int16)

    def screen(part: slice, grid: tuple[int, int], out: Tensor, close: Tensor, length: Tensor) -> None:
        screen_int4[grid](
            packed[part],
            source[part],
            amax[part],
            out,
            close,
            length,
            rows * words // 2,
            blocks_of_group=blocks_of_group,
            TILE=_TILE,
            num_warps=_WARPS,
        )

    return _sweep((experts, rows, words // 2), (packed, source), amax, blocks_of_group, screen)


def sweep_bf16(weight: Tensor, amax: Tensor) -> Swept:
    """Sweep BF16 experts: weights [E, N, K], amax f32 [E] of each scale group."""
    check_stack("weight", weight, torch.bfloat16)
    experts, rows, columns = weight.shape
    check_blocks(columns, NVFP4_BLOCK)
    pairs = weight.view(torch.int32)
    bits = weight.view(torch.int16)

    def screen(part: slice, grid: tuple[int, int], out: Tensor, close: Tensor, length: Tensor) -> None:
        blocks = rows * columns // NVFP4_BLOCK
        screen_bf16[grid](pairs[part], amax[part], out, close, length, blocks, TILE=_TILE, num_warps=_WARPS)

    return _sweep((experts, rows, columns // NVFP4_BLOCK), (bits, bits), amax, 0, screen)


def _sweep(
    shape: tuple[int, int, int],
    sources: tuple[Tensor, Tensor],
    amax: Tensor,
    blocks_of_group: int,
    screen: Callable[[slice, tuple[int, int], Tensor, Tensor, Tensor], None],
) -> Swept:
    """Screen and settle the experts in groups."""
    experts, rows, blocks_of_row = shape
    check_shape("amax", amax, (experts,), torch.float32)
    blocks = rows * blocks_of_row
    at_once = min(max(_BLOCKS_AT_ONCE // blocks, 1), experts)
    starts = range(0, experts, at_once)
    device = amax.device
    out = torch.empty(shape, dtype=torch.uint8, device=device)
    close = torch.empty(at_once * blocks, dtype=torch.int64, device=device)
    lengths = torch.zeros(len(starts), dtype=torch.int32, device=device)
    undecided = torch.empty(_UNDECIDED_LISTED, dtype=torch.int64, device=device)
    count = torch.zeros(1, dtype=torch.int32, device=device)
    for turn, start in enumerate(starts):
        part = slice(start, min(start + at_once, experts))
        grid = (-(-blocks // _TILE), part.stop - start)
        screen(part, grid, out[part], close, lengths[turn:])
        settle_close[(min(_CLOSE_PROGRAMS, -(-grid[1] * blocks // _CLOSE_TILE)),)](
            sources[0][part],
            sources[1][part],
            amax[part],
            out[part],
            close,
            lengths[turn:],
            undecided,
            count,
            start * blocks,
            blocks,
            _UNDECIDED_LISTED,
            blocks_of_group=blocks_of_group,
            TILE=_CLOSE_TILE,
            num_warps=_CLOSE_WARPS,
        )
    return Swept(out, undecided, count, lengths)


def settle_int4(swept: Swept, packed: Tensor, scale: Tensor, amax: Tensor) -> int:
    """Decide the undecided blocks of these experts in place and return their number. Synchronizes with the device."""
    groups = scale.view(torch.int16).reshape(-1)
    per_group = swept.scale.numel() // groups.numel()

    def blocks(numbers: Tensor) -> F32:
        words = packed.reshape(-1, 2)[numbers].cpu().numpy()
        steps = groups[numbers // per_group].cpu().numpy().view(np.uint16)[:, None]
        return bf16_to_f32(int4.decode(words, steps, NVFP4_BLOCK))

    return _settle(swept, amax, blocks)


def settle_bf16(swept: Swept, weight: Tensor, amax: Tensor) -> int:
    """Decide the undecided blocks of these experts in place and return their number. Synchronizes with the device."""

    def blocks(numbers: Tensor) -> F32:
        return bf16_to_f32(weight.view(torch.int16).reshape(-1, NVFP4_BLOCK)[numbers].cpu().numpy().view(np.uint16))

    return _settle(swept, amax, blocks)


def _settle(swept: Swept, amax: Tensor, blocks: Callable[[Tensor], F32]) -> int:
    count = int(swept.count.item())
    if count == 0:
        return 0
    flat = swept.scale.reshape(-1)
    numbers = swept.undecided[:count] if count <= len(swept.undecided) else torch.nonzero(flat == 0)[:, 0]
    largest = amax[numbers // swept.scale[0].numel()].cpu().numpy()
    chosen = [best_scale(block, float(top)) for block, top in zip(blocks(numbers), largest, strict=True)]
    flat[numbers] = torch.tensor(chosen, dtype=torch.uint8, device=flat.device)
    return count
