"""Block-scales section: histograms over a bounded sample of the output's scale tensors.

Scales that cluster at either end of their format indicate clipping or lost small blocks.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
from numpy.typing import NDArray

from halfbyte.checkpoint.folder import Checkpoint
from halfbyte.checkpoint.reader import Reader
from halfbyte.families.linears import StoredLinear
from halfbyte.families.model import Model
from halfbyte.formats.reference.floats import E4M3_VALUES, bf16_to_f32, e8m0_decode
from halfbyte.publish.report.blocks import Block, Figure, Missing, Section
from halfbyte.publish.report.charts import Axes, bars

_SCALE = "weight_scale"
_LINEARS = 64  # sampled evenly over the model
_MOST_NBYTES = 1 << 26  # read in total


def scales(checkpoint: Checkpoint | None, model: Model | None, why_no_model: str) -> Section:
    """Return a histogram per format with block scales."""
    if checkpoint is None or model is None:
        return _section([Missing("block scales", why_no_model, "halfbyte inspect OUT")])
    by_format: dict[str, list[StoredLinear]] = {}
    for linear in model.linears.values():
        if _SCALE in linear.parts:
            by_format.setdefault(linear.format, []).append(linear)
    blocks: list[Block] = []
    with Reader(checkpoint) as reader:
        for format, linears in sorted(by_format.items()):
            blocks.append(_histogram(format, linears, reader))
    return _section(
        blocks or [Missing("block scales", "no linear has block scales", "halfbyte quantize SRC OUT -r RECIPE")]
    )


def _section(blocks: list[Block]) -> Section:
    return Section("scales", "Block scales", blocks)


def _histogram(format: str, linears: list[StoredLinear], reader: Reader) -> Block:
    sample = linears[:: max(1, -(-len(linears) // _LINEARS))]
    histogram: Counter[int] = Counter()
    nbytes, read, zeros = 0, 0, 0
    for linear in sample:
        part = linear.parts[_SCALE]
        if nbytes + part.nbytes > _MOST_NBYTES:
            break
        nbytes, read = nbytes + part.nbytes, read + 1
        values = np.abs(_values(reader.tensor(part), part.dtype).reshape(-1))
        good = values[np.isfinite(values) & (values > 0)]
        zeros += int(values.size - good.size)
        powers, counts = np.unique(np.floor(np.log2(good)).astype(np.int64), return_counts=True)
        histogram.update(dict(zip(powers.tolist(), counts.tolist(), strict=True)))
    if not histogram:
        return Missing(f"block scales of {format}", "the sample has no positive scales", "halfbyte audit OUT")
    span = range(min(histogram), max(histogram) + 1)
    total = sum(histogram.values())
    shares = [100 * histogram[power] / total for power in span]
    tooltips = [f"2^{power} to 2^{power + 1}: {histogram[power]:,} scales" for power in span]
    axes = Axes(f"Block scales of {format}", "log2 of the scale", "% of scales")
    about = (
        f"{format}: {total:,} positive scales from {read:,} of {len(linears):,} linears, sampled evenly"
        f" ({nbytes:,} bytes read). {zeros:,} are zero or not finite."
    )
    return Figure(about, bars(axes, [str(power) for power in span], shares, tooltips))


def _values(stored: NDArray[np.generic], dtype: str) -> NDArray[np.float64]:
    if dtype == "F8_E4M3":
        return E4M3_VALUES[stored.astype(np.uint8)].astype(np.float64)
    if dtype == "BF16":
        return bf16_to_f32(stored.astype(np.uint16)).astype(np.float64)
    if dtype in {"U8", "F8_E8M0"}:
        return e8m0_decode(stored.astype(np.uint8)).astype(np.float64)
    return stored.astype(np.float64)
