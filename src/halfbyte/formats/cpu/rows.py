"""Rows of a linear in BF16: decoded from stored tensors, and encoded in chunks that sum their errors.

Chunks run on threads. They depend only on the shape, not on the number of threads, so error sums are the same on every
machine. Kernels release the GIL, so each thread uses a core.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from halfbyte.errors import UsageError
from halfbyte.formats.cpu.kernels import int4_blocks, rows
from halfbyte.formats.cpu.kernels.rows import ERROR, MAX_ERROR, SATURATED, SIGNAL
from halfbyte.formats.encoded import Array, BF16Bits, Quality
from halfbyte.formats.reference.gptq import Factors
from halfbyte.machine.resources import usable_cores

T = TypeVar("T")

_WEIGHTS = 1 << 22  # large enough to amortize table construction, small enough to split an expert over two cores
_ROWS = 128  # chunks start where FP8 blocks start
_STATS = 4


def row_chunks(shape: tuple[int, int]) -> list[slice]:
    """Split N rows into chunks of about four million weights."""
    n, k = shape
    step = max(_ROWS, _WEIGHTS // k // _ROWS * _ROWS)
    return [slice(start, min(start + step, n)) for start in range(0, n, step)]


def _worker_count(threads: int | None, chunks: int) -> int:
    if threads is not None and (type(threads) is not int or threads < 1):
        raise UsageError(f"invalid threads {threads!r}", fix="pass a number of at least 1, or None for one per core")
    return min(threads or usable_cores(), chunks)


def on_chunks(work: Callable[[slice], T], shape: tuple[int, int], threads: int | None) -> list[T]:
    """Run `work` on every chunk and return the results in row order."""
    chunks = row_chunks(shape)
    workers = _worker_count(threads, len(chunks))
    if workers == 1:
        return [work(chunk) for chunk in chunks]
    with ThreadPoolExecutor(workers) as pool:
        return list(pool.map(work, chunks))


@dataclass(frozen=True, slots=True)
class PackedInt4:
    """INT4 rows for direct conversion: bytes [N, K / 2] and BF16 scales [N, K / group]."""

    codes: Array
    scale: Array
    group: int


@dataclass(frozen=True, slots=True)
class Rows:
    """A linear [N, K] with access to any slice of its rows in BF16, from `bits` or decoded by `fill`."""

    shape: tuple[int, int]
    bits: BF16Bits | None = None
    fill: Callable[[slice, BF16Bits], None] | None = None
    int4: PackedInt4 | None = None

    def bf16(self, chunk: slice) -> BF16Bits:
        """Return some rows; decoded rows are in a new array."""
        if self.bits is not None:
            return self.bits[chunk]
        start, stop, _ = chunk.indices(self.shape[0])
        out = np.empty((stop - start, self.shape[1]), np.uint16)
        self.copy_to(out, chunk)
        return out

    def copy_to(self, out: BF16Bits, chunk: slice) -> None:
        """Write some rows into an array."""
        if self.fill is None:
            assert self.bits is not None
            out[:] = self.bits[chunk]
        else:
            self.fill(chunk, out)

    def amax_bits(self, threads: int | None) -> int:
        """Return the largest BF16 magnitude pattern; at or above 0x7F80 it is not finite."""

        def work(chunk: slice) -> int:
            if self.int4 is not None:
                return int(int4_blocks.amax_bits(self.int4.codes[chunk], self.int4.scale[chunk]))
            return int(rows.amax_bits(self.bf16(chunk)))

        return max(on_chunks(work, self.shape, threads))


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodeOptions:
    """Checked options of an encoder; those that do not apply to its format have their defaults.

    `amax_bits` is the BF16 pattern of the amax that sets the tensor scale.
    """

    method: str
    amax_bits: int
    division: str
    group: int
    factors: Factors | None
    name: str
    threads: int | None


def fill_rows(
    source: Rows, threads: int | None, kernel: Callable[[slice, Array], None], records_per_chunk: int | None = None
) -> Quality:
    """Run an encoder on every chunk; it fills its rows of the output and its error records."""

    def work(chunk: slice) -> Array:
        stats = np.zeros((records_per_chunk or chunk.stop - chunk.start, _STATS))
        kernel(chunk, stats)
        return stats

    stats = np.concatenate([record.reshape(-1, _STATS) for record in on_chunks(work, source.shape, threads)])
    return Quality(
        weights=source.shape[0] * source.shape[1],
        signal=float(stats[:, SIGNAL].sum()),
        error=float(stats[:, ERROR].sum()),
        max_error=float(stats[:, MAX_ERROR].max()),
        saturated=int(stats[:, SATURATED].sum()),
    )
