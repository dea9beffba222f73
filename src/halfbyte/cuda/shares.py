"""What each of several devices does of a pass: some of the rows, and some of the experts that are encoded.

Rows are split at multiples of `SUM_ROWS`, so that what devices measure are parts as everywhere else, which are added in
their order. Nothing here needs PyTorch: `halfbyte plan` asks too.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from halfbyte.calibrate.sums import SUM_ROWS
from halfbyte.errors import UsageError

if TYPE_CHECKING:
    from halfbyte.calibrate.rows import Rows


def row_shares(rows: int, devices: int) -> list[slice]:
    """Return the rows of each device, in order: whole parts, as many as of any other or one less."""
    return [slice(share.start * SUM_ROWS, min(share.stop * SUM_ROWS, rows)) for share in _even(_parts(rows), devices)]


def expert_shares(experts: int, devices: int) -> list[slice]:
    """Return the experts that each device encodes, in order; none of them where there are fewer than devices."""
    return _even(experts, devices)


def most_rows(rows: int, devices: int) -> int:
    """Return how many rows the device has that has most."""
    return max(share.stop - share.start for share in row_shares(rows, devices))


def refuse_too_many(rows: int, devices: int) -> None:
    """Refuse devices that would have no rows."""
    if _parts(rows) < devices > 1:
        what = f"{rows} rows of tokens cannot be split over {devices} GPUs: each takes {SUM_ROWS} of them or more"
        fix = f"name {_parts(rows)} of the GPUs, or give --samples {SUM_ROWS * devices}"
        raise UsageError(what, where="--device", fix=fix)


def some_rows(rows: Rows, share: slice) -> Rows:
    """Return a device's rows, without copying."""
    return replace(
        rows,
        tokens=rows.tokens[share],
        real=rows.real[share],
        positions=rows.positions[share],
        documents=rows.documents[share],
        domains=rows.domains[share],
    )


def _parts(rows: int) -> int:
    return -(-rows // SUM_ROWS)


def _even(count: int, devices: int) -> list[slice]:
    return [slice(count * at // devices, count * (at + 1) // devices) for at in range(devices)]
