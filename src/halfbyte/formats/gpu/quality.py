"""Quantization error per expert: kernels write one record per program, and PyTorch sums the records in FP64.

The records and the order of the sums depend only on the shape, so the result is deterministic.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from halfbyte.formats.gpu.scalars import error_unit

RECORD = 4  # signal, error, max_error, saturated, as in `cpu.rows`


class QualitySums(NamedTuple):
    """`formats.encoded.Quality` for each expert of a stack: `weights` per expert, and tensors [E]."""

    weights: int
    signal: torch.Tensor
    error: torch.Tensor
    max_error: torch.Tensor
    saturated: torch.Tensor


def new_records(experts: int, programs: int, wanted: bool, device: torch.device) -> torch.Tensor:
    """Allocate zeroed records for every program, FP64 [4, E, programs]; a program may write none."""
    return torch.zeros((RECORD, experts, programs) if wanted else (1,), dtype=torch.float64, device=device)


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
