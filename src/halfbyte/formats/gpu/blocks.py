"""Shared code of the FP4 encoders: result type, checks before a launch, amax, tensor scales, quantization error.

The amax of INT4 experts is read mostly from their scales: a group cannot exceed eight times its scale, so once a large
weight is known, only groups that could be larger are read. The groups with the largest scales are read first.

Quantization error: kernels write one record per program, and PyTorch sums the records in FP64. The records and the
order of the sums depend only on the shape, so the result is deterministic.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from halfbyte.errors import TensorError
from halfbyte.formats.gpu.scalars import bf16_bits, bf16_value, error_unit

NVFP4_BLOCK, MXFP4_BLOCK = 16, 32
SLOW_PROGRAMS = 64  # experts that need a slow path are rare, so few programs check for it, each in a loop
_CODE_RANGE = 2688.0  # the largest code times the largest block scale
_ZERO_TENSOR_AMAX = 6.0  # see reference.nvfp4
_STACK = 3  # [E, N, K]
_RECORD = 4  # signal, error, max_error, saturated, as in `cpu.rows`
_AMAX_ROWS = 2048
_FIRST_LOOK = 7.5  # eighths: groups with a scale this close to the largest are read first


class QualitySums(NamedTuple):
    """`formats.encoded.Quality` for each expert of a stack: `weights` per expert, and tensors [E]."""

    weights: int
    signal: torch.Tensor
    error: torch.Tensor
    max_error: torch.Tensor
    saturated: torch.Tensor


class Blocks(NamedTuple):
    """A stack of linears in FP4: codes U8 [E, N, K / 2], scale bytes U8 [E, N, K / block], and tensor scales FP32 [E].

    The kernels multiply with `tensor_scale` (NVFP4 max) or divide by it (compressed-tensors).
    """

    packed: torch.Tensor
    scale: torch.Tensor
    tensor_scale: torch.Tensor | None
    quality: QualitySums | None


def tensor_scale(amax: torch.Tensor) -> torch.Tensor:
    """`weight_scale_2` of each expert: amax / 2688 in IEEE division (PyTorch multiplies by a scalar's reciprocal)."""
    range_of_codes = torch.full_like(amax, _CODE_RANGE)
    return torch.where(amax == 0, _ZERO_TENSOR_AMAX, amax) / range_of_codes


def stored_global_scale(amax: torch.Tensor) -> torch.Tensor:
    """`weight_global_scale` of ModelOpt's arithmetic in the compressed-tensors format: 2688 / amax."""
    return torch.full_like(amax, _CODE_RANGE) / torch.where(amax == 0, _ZERO_TENSOR_AMAX, amax)


def global_scale(amax: torch.Tensor) -> torch.Tensor:
    """`weight_global_scale` in compressed-tensors' arithmetic: a reciprocal and a product, both rounded to BF16."""
    reciprocal = (torch.ones_like(amax) / amax).to(torch.bfloat16).float()
    scale = (reciprocal * _CODE_RANGE).to(torch.bfloat16).float()
    return torch.where(torch.isfinite(scale), scale, 1.0)


def check_stack(what: str, tensor: torch.Tensor, dtype: torch.dtype) -> None:
    """Raise an error for a wrong rank or dtype, or non-contiguous rows."""
    if tensor.dim() != _STACK or tensor.dtype != dtype or not tensor.is_contiguous() or tensor.numel() == 0:
        actual = f"{tensor.dtype} {list(tensor.shape)}{'' if tensor.is_contiguous() else ', not contiguous'}"
        raise TensorError(f"{what} is {actual}", where="a stack", fix=f"pass contiguous {dtype} [E, N, K]")


def check_shape(what: str, tensor: torch.Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """Raise an error if a tensor does not have the expected shape."""
    if tuple(tensor.shape) != shape or tensor.dtype != dtype or not tensor.is_contiguous():
        actual = f"{tensor.dtype} {list(tensor.shape)}"
        raise TensorError(f"{what} is {actual}", where="a stack", fix=f"pass contiguous {dtype} {list(shape)}")


def check_blocks(k: int, block: int) -> None:
    """Raise an error for partial blocks, which engines do not load."""
    if k % block:
        raise TensorError(f"K = {k} is not a multiple of {block}", where="a stack", fix="keep it in BF16")


def int4_group(packed: torch.Tensor, scale: torch.Tensor) -> int:
    """Return the INT4 group size."""
    check_stack("packed", packed, torch.int32)
    experts, n, words = packed.shape
    groups = {(experts, n, 8 * words // g): g for g in (32, 64, 128) if 8 * words % g == 0}
    if tuple(scale.shape) not in groups:
        what = f"scale {list(scale.shape)} does not fit packed {list(packed.shape)}"
        raise TensorError(what, where="a stack", fix="pass one scale for 32, 64 or 128 columns")
    check_shape("scale", scale, tuple(scale.shape), torch.bfloat16)
    return groups[tuple(scale.shape)]


@triton.jit
def _amax_bf16(weight_ptr, top_ptr, size, SIZE: tl.constexpr):
    expert = tl.program_id(1)
    at = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    bits = tl.load(weight_ptr + expert.to(tl.int64) * size + at, mask=at < size, other=0)
    tl.atomic_max(top_ptr + expert, tl.max(bits.to(tl.int32) & 0x7FFF, axis=0))


@triton.jit
def _amax_int4(packed_ptr, step_ptr, floor_ptr, top_ptr, groups, WORDS: tl.constexpr, ROWS: tl.constexpr):
    """Raise `top` to the largest magnitude of the groups that could exceed the expert's floor."""
    expert = tl.program_id(1)
    group = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    first = expert.to(tl.int64) * groups
    step = bf16_value(tl.load(step_ptr + first + group, mask=group < groups, other=0).to(tl.int32) & 0x7FFF)
    wanted = bf16_bits(8.0 * step) > tl.load(floor_ptr + expert)
    if tl.max(wanted.to(tl.int32), axis=0) > 0:
        at = group[:, None] * WORDS + tl.arange(0, WORDS)[None, :]
        word = tl.load(packed_ptr + first * WORDS + at, mask=wanted[:, None], other=-2004318072)  # eight zeros
        largest = tl.zeros_like(word)
        for j in tl.static_range(8):
            largest = tl.maximum(largest, tl.abs(((word >> (4 * j)) & 15) - 8))
        most = tl.max(largest, axis=1).to(tl.float32)
        tl.atomic_max(top_ptr + expert, tl.max(bf16_bits(most * step), axis=0))


def bf16_amax(weight: torch.Tensor) -> torch.Tensor:
    """Largest magnitude of each expert of BF16 [E, N, K]: FP32 [E]. It is not finite if a weight is not."""
    check_stack("weight", weight, torch.bfloat16)
    return _value_of(_largest_bits(weight))


def int4_amax(packed: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Largest magnitude of each expert of INT4, packed int32 [E, N, K / 8], BF16 scales: FP32 [E]."""
    words = int4_group(packed, scale) // 8
    experts, groups = packed.shape[0], scale[0].numel()
    floor = (_value_of(_largest_bits(scale)) * _FIRST_LOOK).to(torch.bfloat16).view(torch.int16).to(torch.int32)
    top = torch.zeros(experts, dtype=torch.int32, device=packed.device)
    grid = (triton.cdiv(groups, _AMAX_ROWS), experts)
    for _ in range(2):
        arguments = (packed, scale.view(torch.int16), floor, top, groups, words, _AMAX_ROWS)
        _amax_int4[grid](*arguments, enable_fp_fusion=False)
        floor = top.clone()
    return _value_of(top)


def _largest_bits(weight: torch.Tensor) -> torch.Tensor:
    experts, size = weight.shape[0], weight[0].numel()
    top = torch.zeros(experts, dtype=torch.int32, device=weight.device)
    tile = 16384
    _amax_bf16[(triton.cdiv(size, tile), experts)](weight.view(torch.int16), top, size, tile, num_warps=8)
    return top


def _value_of(bits: torch.Tensor) -> torch.Tensor:
    return (bits << 16).view(torch.float32)


def new_records(experts: int, programs: int, wanted: bool, device: torch.device) -> torch.Tensor:
    """Allocate zeroed records for every program, FP64 [4, E, programs]; a program may write none."""
    return torch.zeros((_RECORD, experts, programs) if wanted else (1,), dtype=torch.float64, device=device)


def add_up(every: list[torch.Tensor], weights: int) -> QualitySums:
    """Return the sums of each expert from the records of one or more launches."""
    records = torch.cat(every, dim=2) if len(every) > 1 else every[0]
    signal, error, _, saturated = records.sum(dim=2)
    return QualitySums(weights, signal, error, records[2].amax(dim=1), saturated.to(torch.int64))


@triton.jit
def no_sums():
    """Return zero signal, error, largest error and clipped weights."""
    zero = tl.full((), 0.0, tl.float64)
    return zero, zero, tl.full((), 0.0, tl.float32), tl.full((), 0, tl.int32)


@triton.jit
def sums_of_pairs(even, odd, even_error, odd_error, even_clipped, odd_clipped, amax):
    """Signal, error, largest error and clipped weights of a tile of [blocks, pairs].

    A block's squares are added in FP32, in units of its amax; blocks are added in FP64.
    """
    largest = tl.max(tl.max(tl.maximum(even_error, odd_error), axis=1), axis=0)
    clipped = tl.sum(tl.sum(even_clipped.to(tl.int32) + odd_clipped.to(tl.int32), axis=1), axis=0)
    unit, per_unit = error_unit(amax)
    even, odd = even * per_unit[:, None], odd * per_unit[:, None]
    signal = tl.sum(even * even + odd * odd, axis=1).to(tl.float64)
    even, odd = even_error * per_unit[:, None], odd_error * per_unit[:, None]
    error = tl.sum(even * even + odd * odd, axis=1).to(tl.float64)
    square = unit.to(tl.float64) * unit.to(tl.float64)
    return tl.sum(signal * square, axis=0), tl.sum(error * square, axis=0), largest, clipped


@triton.jit
def write_record(records_ptr, signal, error, largest, saturated):
    """Write the record of this program; the grid is (tiles, experts)."""
    tiles = tl.num_programs(0)
    stride = tiles.to(tl.int64) * tl.num_programs(1)
    at = records_ptr + tl.program_id(1).to(tl.int64) * tiles + tl.program_id(0)
    tl.store(at, signal)
    tl.store(at + stride, error)
    tl.store(at + 2 * stride, largest.to(tl.float64))
    tl.store(at + 3 * stride, saturated.to(tl.float64))
