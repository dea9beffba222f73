"""Rows of a linear in BF16: decoded from stored tensors, and encoded in chunks that sum their errors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from halfbyte.formats.cpu.kernels import int4_blocks, rows
from halfbyte.formats.cpu.kernels.rows import ERROR, MAX_ERROR, SATURATED, SIGNAL
from halfbyte.formats.encoded import Array, BF16Bits, Quality
from halfbyte.formats.reference.gptq import Factors
from halfbyte.formats.row_chunks import on_chunks

_STATS = 4


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
