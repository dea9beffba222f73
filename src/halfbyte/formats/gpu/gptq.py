"""GPTQ for NVFP4 on the GPU: the procedure of reference.gptq on stacks of linears, in FP64.

Weights are kept transposed, [K, rows], so that the rows of a column are contiguous. A Triton kernel rounds one block of
16 columns of all rows and chooses its scales; matrix products apply its errors to the other columns: of its panel at
once, of its section after the panel, and of all later sections after the section. This limits the memory traffic.

The products add in another order than the reference, so single codes may differ where a weight is next to a rounding
boundary. The order depends only on the shapes: equal inputs give equal bytes on the same GPU and library versions.
"""

# ruff: noqa: PLR2004, RUF005 - constants of the format; Triton does not unpack tuples

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
import triton
import triton.language as tl
from numpy.typing import NDArray

from halfbyte.formats.gpu.blocks import (
    NVFP4_BLOCK,
    Blocks,
    QualitySums,
    add_up,
    new_records,
    sums_of_pairs,
    tensor_scale,
    write_record,
)
from halfbyte.formats.gpu.scalars import INTERPRETED, bf16_value, e2m1_value, e4m3_code, e4m3_value
from halfbyte.formats.reference.gptq import ABOVE, BELOW, DAMPING, FIRST, HEADROOM, LAST, column_order

PANEL, SECTION = 128, 1024  # columns
_ROWS = 128  # per program: one thread each
_QUALITY_BLOCKS = 256  # per program
_LANES = 16  # threads for the candidates of a row
_CHOICE_ROWS = 128 if INTERPRETED.value else 16  # per program
_BLOCK = tl.constexpr(NVFP4_BLOCK)
_BELOW, _ABOVE, _FIRST, _LAST = (tl.constexpr(value) for value in (BELOW, ABOVE, FIRST, LAST))
_CANDIDATES = tl.constexpr(BELOW + ABOVE + 1)
_TO_INTEGER = tl.constexpr(6755399441055744.0)  # 1.5 * 2^52: adding it rounds an FP64 number to an integer
_linalg: Any = torch.linalg  # its functions are untyped


class DeviceFactors(NamedTuple):
    """`reference.gptq.Factors` of one or several Hessians, on the device."""

    order: torch.Tensor  # INT64 [H, K]
    upper: torch.Tensor  # FP64 [H, K, K], in that order


def gptq_scale(amax: torch.Tensor) -> torch.Tensor:
    """`weight_scale_2` of each expert, as `reference.gptq.tensor_scale`."""
    return tensor_scale(amax) * float(HEADROOM)


def column_orders(hessians: torch.Tensor) -> torch.Tensor:
    """Return the order in which columns are rounded, INT64 [H, K]. Synchronizes: it is computed on the host."""
    diagonal: NDArray[np.float64] = hessians.diagonal(dim1=1, dim2=2).cpu().numpy()
    return torch.from_numpy(np.stack([column_order(row) for row in diagonal])).to(hessians.device)


def factor(hessians: torch.Tensor, order: torch.Tensor) -> DeviceFactors:
    """Return the factors of Hessians, FP64 [H, K, K]."""
    diagonal = hessians.diagonal(dim1=1, dim2=2)
    k = hessians.shape[-1]
    mean = diagonal.sum(dim=1) / k
    damping = torch.where(mean > 0, DAMPING * mean, 1.0)
    upper = torch.empty_like(hessians)
    identity = torch.eye(k, dtype=torch.float64, device=hessians.device)
    for at, columns in enumerate(order):
        backward = columns.flip(0)
        ordered = hessians[at].index_select(0, backward).index_select(1, backward)
        ordered.diagonal().add_(damping[at])
        lower = _linalg.cholesky(ordered)
        upper[at] = _linalg.solve_triangular(lower, identity, upper=False).flip(0, 1)
    return DeviceFactors(order, upper)


def compensate(weights: torch.Tensor, amax: torch.Tensor, factors: DeviceFactors) -> Blocks:
    """Encode BF16 weights [E, N, K]; the factors are those of each expert, or shared by all."""
    experts, n, k = weights.shape
    scale_2 = gptq_scale(amax)
    shared = len(factors.order) == 1
    groups, rows = (1, experts * n) if shared else (experts, n)
    by_row = scale_2.repeat_interleave(n).view(groups, rows)
    columns = weights.view(groups, rows, k).transpose(1, 2)
    ordered = [part.index_select(0, order) for part, order in zip(columns, factors.order, strict=True)]
    left = torch.stack(ordered).double()
    code = torch.empty((groups, k, rows), dtype=torch.uint8, device=weights.device)
    scale = torch.empty((groups, k // NVFP4_BLOCK, rows), dtype=torch.uint8, device=weights.device)
    _round_columns(left, factors.upper, by_row, code, scale)
    del left
    packed, scale = _in_file_order(code, scale, factors.order)
    packed, scale = packed.view(experts, n, k // 2), scale.view(experts, n, k // NVFP4_BLOCK)
    blocks = Blocks(packed, scale, scale_2, None)
    return blocks._replace(quality=_quality(weights, blocks))


def _round_columns(
    left: torch.Tensor, upper: torch.Tensor, scale_2: torch.Tensor, code: torch.Tensor, scale: torch.Tensor
) -> None:
    """Fill codes [G, K, R] and block scales [G, K/16, R] of targets `left`, FP64 [G, K, R], which it overwrites."""
    groups, k, rows = left.shape
    inverse = 1.0 / upper.diagonal(dim1=1, dim2=2).contiguous()
    error = torch.empty((groups, min(SECTION, k), rows), dtype=torch.float64, device=left.device)
    grid, choices = ((triton.cdiv(rows, size), groups) for size in (_ROWS, _CHOICE_ROWS))

    def apply(begin: int, end: int, start: int, until: int) -> None:
        """Subtract the errors of the columns `begin` to `end` from the columns `start` to `until`."""
        if start < until:
            rest, found = left[:, start:until], error[:, begin - section : end - section]
            torch.baddbmm(rest, upper[:, begin:end, start:until].transpose(1, 2), found, alpha=-1, out=rest)

    for section in range(0, k, SECTION):
        section_end = min(section + SECTION, k)
        for panel in range(section, section_end, PANEL):
            panel_end = min(panel + PANEL, section_end)
            for begin in range(panel, panel_end, NVFP4_BLOCK):
                _choose_scale[choices](
                    left, upper, inverse, scale_2, scale, begin, k, rows, ROWS=_CHOICE_ROWS, LANES=_LANES
                )
                _round_block[grid](
                    left, upper, scale_2, scale, code, error, begin, begin - section, k, error.shape[1], rows,
                    ROWS=_ROWS, num_warps=_ROWS // 32,
                )  # fmt: skip
                apply(begin, begin + NVFP4_BLOCK, begin + NVFP4_BLOCK, panel_end)
            apply(panel, panel_end, panel_end, section_end)
        apply(section, section_end, section_end, k)


@triton.jit
def _choose_scale(
    left_ptr, upper_ptr, inverse_ptr, scale_2_ptr, scale_ptr, begin, k, rows, ROWS: tl.constexpr, LANES: tl.constexpr
):
    """Choose the scales of a block of columns: every lane tries one candidate for one row."""
    group = tl.program_id(1).to(tl.int64)
    lane = tl.arange(0, ROWS * LANES)
    row = tl.program_id(0).to(tl.int64) * ROWS + lane // LANES
    inside = row < rows
    weights = _columns(left_ptr + (group * k + begin) * rows + row, rows, inside)
    scale_2 = tl.load(scale_2_ptr + group * rows + row, mask=inside, other=1.0)
    scale = _candidate(weights, scale_2, lane % LANES)
    step = (e4m3_value(scale) * scale_2).to(tl.float64)
    per_step = 1.0 / step
    upper_ptr += (group * k + begin) * k + begin
    errors = ()
    loss = tl.zeros((ROWS * LANES,), tl.float64)
    for j in tl.static_range(_BLOCK):
        left = _updated(weights[j], errors, upper_ptr + j, k, j)
        value, _ = _nearest(left * per_step)
        error = (left - value * step) * tl.load(inverse_ptr + group * k + begin + j)
        loss += error * error
        errors = errors + (error,)
    loss = tl.where(lane % LANES < _CANDIDATES, loss, float("inf"))
    best = tl.argmin(tl.reshape(loss, (ROWS, LANES)), axis=1, tie_break_left=True)
    chosen = tl.sum(
        tl.where(tl.arange(0, LANES)[None, :] == best[:, None], tl.reshape(scale, (ROWS, LANES)), 0), axis=1
    )
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    at = (group * (k // _BLOCK) + begin // _BLOCK) * rows + row
    tl.store(scale_ptr + at, chosen.to(tl.uint8), mask=row < rows)


@triton.jit
def _round_block(
    left_ptr,
    upper_ptr,
    scale_2_ptr,
    scale_ptr,
    code_ptr,
    error_ptr,
    begin,
    error_begin,
    k,
    error_columns,
    rows,
    ROWS: tl.constexpr,
):
    """Round a block of columns with the chosen scales: codes and errors of all rows."""
    group = tl.program_id(1).to(tl.int64)
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    inside = row < rows
    weights = _columns(left_ptr + (group * k + begin) * rows + row, rows, inside)
    scale_2 = tl.load(scale_2_ptr + group * rows + row, mask=inside, other=1.0)
    scale = tl.load(scale_ptr + (group * (k // _BLOCK) + begin // _BLOCK) * rows + row, mask=inside, other=1)
    step = (e4m3_value(scale) * scale_2).to(tl.float64)
    upper_ptr += (group * k + begin) * k + begin
    code_ptr += (group * k + begin) * rows + row
    error_ptr += (group * error_columns + error_begin) * rows + row
    errors = ()
    for j in tl.static_range(_BLOCK):
        left = _updated(weights[j], errors, upper_ptr + j, k, j)
        value, code = _nearest(left / step)
        error = (left - value * step) / tl.load(upper_ptr + j * k + j)
        errors = errors + (error,)
        tl.store(code_ptr + j * rows, code.to(tl.uint8), mask=inside)
        tl.store(error_ptr + j * rows, error, mask=inside)


@triton.jit
def _columns(pointers, rows, inside):
    """Return the 16 columns of a block. Each is a tensor of its own, so that no threads exchange values."""
    columns = ()
    for _ in tl.static_range(_BLOCK):
        columns = columns + (tl.load(pointers, mask=inside, other=0.0),)
        pointers += rows
    return columns


@triton.jit
def _candidate(weights, scale_2, number):
    """E4M3 code of a candidate: `number` 0 is the smallest."""
    largest = tl.abs(weights[0])
    for j in tl.static_range(1, _BLOCK):
        largest = tl.maximum(largest, tl.abs(weights[j]))
    wanted = largest / (6.0 * scale_2.to(tl.float64))
    middle = e4m3_code(tl.minimum(tl.maximum(wanted, 0.001953125), 448.0).to(tl.float32))
    return tl.minimum(tl.maximum(middle + number - _BELOW, _FIRST), _LAST)


@triton.jit
def _updated(weight, errors, upper_ptr, k, j: tl.constexpr):
    """Column j of a block after the updates for the errors of the columns before it."""
    for i in tl.static_range(j):
        weight -= errors[i] * tl.load(upper_ptr + i * k)
    return weight


@triton.jit
def _nearest(quotient):
    """Nearest E2M1 value, ties to the even code, and its code."""
    magnitude = tl.abs(quotient)
    finer = tl.where(magnitude < 2.0, 2.0, tl.where(magnitude < 4.0, 1.0, 0.5))  # steps per unit
    coarser = tl.where(magnitude < 2.0, 0.5, tl.where(magnitude < 4.0, 1.0, 2.0))
    value = tl.minimum((magnitude * finer + _TO_INTEGER - _TO_INTEGER) * coarser, 6.0)
    code = tl.where(value < 2.0, value * 2.0, tl.where(value < 6.0, value + 2.0, 7.0)).to(tl.int32)
    negative = quotient < 0.0
    return tl.where(negative, 0.0 - value, value), code | tl.where(negative, 8, 0)


def _in_file_order(code: torch.Tensor, scale: torch.Tensor, order: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return packed codes [G, R, K/2] and scales [G, R, K/16], with columns in the order of the file."""
    block_order = order[:, ::NVFP4_BLOCK] // NVFP4_BLOCK
    packed: list[torch.Tensor] = []
    scales: list[torch.Tensor] = []
    for at in range(len(code)):
        codes = code[at].index_select(0, order[at].argsort()).t()
        packed.append(codes[:, ::2] | (codes[:, 1::2] << 4))
        scales.append(scale[at].index_select(0, block_order[at].argsort()).t().contiguous())
    return torch.stack(packed), torch.stack(scales)


def _quality(weights: torch.Tensor, blocks: Blocks) -> QualitySums:
    """Return the quantization error of each expert."""
    experts, n, k = weights.shape
    programs = triton.cdiv(n * k // NVFP4_BLOCK, _QUALITY_BLOCKS)
    records = new_records(experts, programs, True, weights.device)
    _measure[(programs, experts)](
        weights.view(torch.int16), blocks.packed, blocks.scale, blocks.tensor_scale, records,
        n * k // NVFP4_BLOCK, BLOCKS=_QUALITY_BLOCKS,
    )  # fmt: skip
    return add_up([records], n * k)


@triton.jit
def _measure(weight_ptr, packed_ptr, scale_ptr, scale_2_ptr, records_ptr, blocks, BLOCKS: tl.constexpr):
    expert = tl.program_id(1).to(tl.int64)
    block = tl.program_id(0) * BLOCKS + tl.arange(0, BLOCKS)
    inside = block < blocks
    at = expert * blocks + block
    step = e4m3_value(tl.load(scale_ptr + at, mask=inside, other=0)) * tl.load(scale_2_ptr + expert)
    pair = at[:, None] * 8 + tl.arange(0, 8)[None, :]
    codes = tl.load(packed_ptr + pair, mask=inside[:, None], other=0).to(tl.int32)
    even = bf16_value(tl.load(weight_ptr + 2 * pair, mask=inside[:, None], other=0).to(tl.int32) & 0xFFFF)
    odd = bf16_value(tl.load(weight_ptr + 2 * pair + 1, mask=inside[:, None], other=0).to(tl.int32) & 0xFFFF)
    amax = tl.max(tl.maximum(tl.abs(even), tl.abs(odd)), axis=1)
    signal, error, largest, clipped = sums_of_pairs(
        even,
        odd,
        tl.abs(even - _decoded(codes & 15) * step[:, None]),
        tl.abs(odd - _decoded(codes >> 4) * step[:, None]),
        tl.abs(even) > 6.0 * step[:, None],
        tl.abs(odd) > 6.0 * step[:, None],
        amax,
    )
    write_record(records_ptr, signal, error, largest, clipped)


@triton.jit
def _decoded(code):
    value = e2m1_value(code & 7)
    return tl.where(code > 7, 0.0 - value, value)
