"""GPTQ for NVFP4 on the GPU: the procedure of reference.gptq on stacks of linears, in FP64.

Weights are kept transposed, [K, rows], so that the rows of a column are contiguous. A Triton kernel rounds one block of
16 columns of all rows and chooses its scales; matrix products apply its errors to the other columns: of its panel at
once, of its section after the panel, and of all later sections after the section. This limits the memory traffic.

The products add in another order than the reference, so single codes may differ where a weight is next to a rounding
boundary. The order depends only on the shapes: equal inputs give equal bytes on the same GPU and library versions.
"""

# ruff: noqa: PLR2004 - constants of the format

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
import triton
import triton.language as tl
from numpy.typing import NDArray

from halfbyte.formats.gpu.blocks import NVFP4_BLOCK, Blocks, tensor_scale
from halfbyte.formats.gpu.quality import QualitySums
from halfbyte.formats.gpu.scalars import e4m3_code, e4m3_value
from halfbyte.formats.reference.floats import E4M3_VALUES, e2m1_decode
from halfbyte.formats.reference.gptq import ABOVE, BELOW, DAMPING, FIRST, HEADROOM, LAST, column_order

PANEL, SECTION = 128, 1024  # columns
_ROWS = 128  # per program: one thread each
_BLOCK = tl.constexpr(NVFP4_BLOCK)
_BELOW, _ABOVE, _FIRST, _LAST = (tl.constexpr(value) for value in (BELOW, ABOVE, FIRST, LAST))
_TO_INTEGER = tl.constexpr(6755399441055744.0)  # 1.5 * 2^52: adding it rounds an FP64 number to an integer
E2M1_MAX = 6.0
_linalg: Any = torch.linalg  # its functions are untyped


class DeviceFactors(NamedTuple):
    """`reference.gptq.Factors` of one or several Hessians, on the device."""

    order: torch.Tensor  # INT64 [H, K]
    upper: torch.Tensor  # FP64 [H, K, K], in that order


def gptq_scale(amax: torch.Tensor) -> torch.Tensor:
    """`weight_scale_2` of each expert, as `reference.gptq.tensor_scale`."""
    return tensor_scale(amax) * float(HEADROOM)


def factor(hessians: torch.Tensor) -> DeviceFactors:
    """Return the factors of Hessians, FP64 [H, K, K]. Synchronizes: columns are ordered on the host."""
    diagonal = hessians.diagonal(dim1=1, dim2=2)
    host: NDArray[np.float64] = diagonal.cpu().numpy()
    order = torch.from_numpy(np.stack([column_order(row) for row in host])).to(hessians.device)
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
    return Blocks(packed, scale, scale_2, _quality(weights, packed, scale, scale_2))


def _round_columns(
    left: torch.Tensor, upper: torch.Tensor, scale_2: torch.Tensor, code: torch.Tensor, scale: torch.Tensor
) -> None:
    """Fill codes [G, K, R] and block scales [G, K/16, R] of targets `left`, FP64 [G, K, R], which it overwrites."""
    groups, k, rows = left.shape
    error = torch.empty((groups, min(SECTION, k), rows), dtype=torch.float64, device=left.device)
    grid = (triton.cdiv(rows, _ROWS), groups)

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
                _round_block[grid](
                    left, upper, scale_2, code, scale, error, begin, begin - section, k, error.shape[1], rows,
                    ROWS=_ROWS, num_warps=_ROWS // 32,
                )  # fmt: skip
                apply(begin, begin + NVFP4_BLOCK, begin + NVFP4_BLOCK, panel_end)
            apply(panel, panel_end, panel_end, section_end)
        apply(section, section_end, section_end, k)


@triton.jit
def _round_block(
    left_ptr,
    upper_ptr,
    scale_2_ptr,
    code_ptr,
    scale_ptr,
    error_ptr,
    begin,
    error_begin,
    k,
    error_columns,
    rows,
    ROWS: tl.constexpr,
):
    """Choose the scales of a block of columns, and round it: codes, scales and errors of all rows."""
    group = tl.program_id(1).to(tl.int64)
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    inside = row < rows
    column = tl.arange(0, _BLOCK)
    at = (group * k + begin + column.to(tl.int64))[:, None] * rows + row[None, :]
    weight = tl.load(left_ptr + at, mask=inside[None, :], other=0.0)
    scale_2 = tl.load(scale_2_ptr + group * rows + row, mask=inside, other=1.0)
    upper_ptr += (group * k + begin) * k + begin
    largest = tl.max(tl.abs(weight), axis=0)
    wanted = largest / (6.0 * scale_2.to(tl.float64))
    middle = e4m3_code(tl.minimum(tl.maximum(wanted, 0.001953125), 448.0).to(tl.float32))
    best = tl.full((ROWS,), float("inf"), tl.float64)
    winner = tl.full((ROWS,), _FIRST, tl.int32)
    for offset in range(-_BELOW, _ABOVE + 1):
        scale = tl.minimum(tl.maximum(middle + offset, _FIRST), _LAST)
        error, _ = _rounded(weight, upper_ptr, k, (e4m3_value(scale) * scale_2).to(tl.float64), ROWS)
        loss = tl.sum(error * error, axis=0)
        better = loss < best
        best = tl.where(better, loss, best)
        winner = tl.where(better, scale, winner)
    error, code = _rounded(weight, upper_ptr, k, (e4m3_value(winner) * scale_2).to(tl.float64), ROWS)
    tl.store(code_ptr + at, code.to(tl.uint8), mask=inside[None, :])
    tl.store(scale_ptr + (group * (k // _BLOCK) + begin // _BLOCK) * rows + row, winner.to(tl.uint8), mask=inside)
    at = (group * error_columns + error_begin + column.to(tl.int64))[:, None] * rows + row[None, :]
    tl.store(error_ptr + at, error, mask=inside[None, :])


@triton.jit
def _rounded(weight, upper_ptr, k, step, ROWS: tl.constexpr):
    """Errors FP64 [16, ROWS] and codes INT32 [16, ROWS] of a block whose code 1 has the value `step`."""
    column = tl.arange(0, _BLOCK)
    error = tl.zeros((_BLOCK, ROWS), tl.float64)
    codes = tl.zeros((_BLOCK, ROWS), tl.int32)
    for j in tl.static_range(_BLOCK):
        update = tl.load(upper_ptr + column * k + j)  # [16]: of column j, by the errors of the columns before it
        # Errors of this and later columns are still zero.
        left = tl.sum(tl.where(column[:, None] == j, weight, 0.0 - error * update[:, None]), axis=0)
        quotient = left / step
        magnitude = tl.abs(quotient)
        finer = tl.where(magnitude < 2.0, 2.0, tl.where(magnitude < 4.0, 1.0, 0.5))  # steps per unit
        coarser = tl.where(magnitude < 2.0, 0.5, tl.where(magnitude < 4.0, 1.0, 2.0))
        value = tl.minimum((magnitude * finer + _TO_INTEGER - _TO_INTEGER) * coarser, 6.0)
        code = tl.where(value < 2.0, value * 2.0, tl.where(value < 6.0, value + 2.0, 7.0)).to(tl.int32)
        negative = quotient < 0.0
        rounded = value * step
        found = (left - tl.where(negative, 0.0 - rounded, rounded)) / tl.load(upper_ptr + j * k + j)
        here = column[:, None] == j
        error = tl.where(here, found[None, :], error)
        codes = tl.where(here, (code | tl.where(negative, 8, 0))[None, :], codes)
    return error, codes


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


def _quality(weights: torch.Tensor, packed: torch.Tensor, scale: torch.Tensor, scale_2: torch.Tensor) -> QualitySums:
    """Return the quantization error of each expert."""
    values = torch.from_numpy(e2m1_decode(np.arange(16, dtype=np.uint8))).to(weights.device)
    scales = torch.from_numpy(E4M3_VALUES).to(weights.device)
    rows: list[torch.Tensor] = []
    for at, weight in enumerate(weights):
        exact = weight.float()
        codes = torch.stack((packed[at] & 15, packed[at] >> 4), dim=-1).view(weight.shape).int()
        step = (scales[scale[at].int()] * scale_2[at]).repeat_interleave(NVFP4_BLOCK, dim=1)
        error = (exact - values[codes] * step).abs()
        saturated = (exact.abs() > E2M1_MAX * step).sum()
        squares = exact.double().square().sum(), error.double().square().sum()
        rows.append(torch.stack([*squares, error.max().double(), saturated.double()]))
    signal, squared_error, largest, saturated = torch.stack(rows, dim=1)
    return QualitySums(weights[0].numel(), signal, squared_error, largest, saturated.to(torch.int64))
