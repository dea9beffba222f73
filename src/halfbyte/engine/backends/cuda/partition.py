"""Partition a run over several devices: the rows that each runs, and the experts that each encodes.

Rows are split at multiples of `SUM_ROWS`, so that statistics are added in the same parts and order as on one device.
This module does not import PyTorch, because `halfbyte plan` uses it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from halfbyte.calibrate.expert_sums import SUM_ROWS
from halfbyte.errors import UsageError

if TYPE_CHECKING:
    from halfbyte.calibrate.token_rows import Rows


def row_shares(rows: int, devices: int) -> list[slice]:
    """Return the rows of each device, in order: whole parts, whose counts differ by at most one."""
    return [slice(share.start * SUM_ROWS, min(share.stop * SUM_ROWS, rows)) for share in _even(_parts(rows), devices)]


def expert_shares(experts: int, devices: int) -> list[slice]:
    """Return the experts that each device encodes, in order; some ranges are empty if devices outnumber experts."""
    return _even(experts, devices)


def most_rows(rows: int, devices: int) -> int:
    """Return the largest number of rows of a device."""
    return max(share.stop - share.start for share in row_shares(rows, devices))


def refuse_too_many(rows: int, devices: int) -> None:
    """Raise if a device would have no rows."""
    if _parts(rows) < devices > 1:
        what = f"{rows} rows of tokens cannot be split over {devices} GPUs: each needs at least {SUM_ROWS}"
        fix = f"use {_parts(rows)} of the GPUs, or --samples {SUM_ROWS * devices}"
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
