"""What a tensor must be before any kernel sees it. Kernels trust these checks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from halfbyte.errors import TensorError, UsageError
from halfbyte.numerics.encoded import Array, stored_array
from halfbyte.numerics.formats import FORMATS, Format
from halfbyte.numerics.reference.floats import BF16_INFINITY, E4M3_NAN
from halfbyte.terminal.suggest import did_you_mean

_E8M0_NAN = 0xFF
_MATRIX = 2


def known_format(name: str) -> Format:
    """Return the row of a format, or say which there are."""
    if name not in FORMATS:
        raise UsageError(f"unknown format '{name}'", fix=did_you_mean(name, FORMATS))
    return FORMATS[name]


def known_method(row: Format, method: str | None) -> str:
    """Return the method, or the format's first one where none is asked for."""
    if not row.encodes:
        raise UsageError(
            f"halfbyte reads {row.name} but does not write it",
            fix="encode to " + ", ".join(name for name, other in FORMATS.items() if other.encodes),
        )
    if method is None:
        return row.encodes[0]
    if method not in row.encodes:
        raise UsageError(f"unknown method '{method}' for {row.name}", fix=did_you_mean(method, row.encodes))
    return method


def matrix(shape: tuple[int, ...], block: int, name: str) -> None:
    """Refuse what is not a matrix of whole blocks: engines load neither padding nor other ranks."""
    if len(shape) != _MATRIX or 0 in shape:
        raise TensorError(f"shape {list(shape)} is not a matrix", where=name, fix="keep this tensor as it is")
    if block and shape[1] % block:
        raise TensorError(
            f"K = {shape[1]} is not a multiple of the block of {block}",
            where=name,
            fix="keep this tensor in BF16; engines do not load partial blocks",
        )


def finite(top_bits: int, name: str, what: str = "weights") -> None:
    """Refuse infinities and NaN: every format would turn them into plausible numbers."""
    if top_bits >= BF16_INFINITY:
        kind = "an infinity" if top_bits == BF16_INFINITY else "NaN"
        raise TensorError(
            f"the {what} hold {kind}", where=name, fix="check the source file; halfbyte does not guess such values"
        )


def same_shape(suffix: str, tensor: Array, expected: tuple[int, ...], name: str) -> None:
    """Refuse tensors that do not belong together."""
    if tensor.shape != expected:
        raise TensorError(
            f"{suffix} has shape {list(tensor.shape)}, not {list(expected)}", where=name, fix="check the source file"
        )


def finite_array(suffix: str, values: Array, name: str) -> None:
    """Refuse scales that would decode to infinities or NaN."""
    if not np.isfinite(values).all():
        raise TensorError(f"{suffix} is not finite", where=name, fix="check the source file")


def finite_codes(code: Array, name: str) -> None:
    """Refuse E4M3's NaN among the weights."""
    if ((code & E4M3_NAN) == E4M3_NAN).any():
        raise TensorError("the weights hold NaN", where=name, fix="check the source file")


# Dtypes that other writers use for the same tensor.
_ALSO = {("fp8_channel", "weight_scale"): "F32"}


def parts(row: Format, tensors: Mapping[str, Any], name: str) -> dict[str, Array]:
    """Return every tensor of the format in the dtype that kernels expect; refuse what is missing or another."""
    missing = [part.suffix for part in row.tensors if part.suffix not in tensors]
    if missing:
        raise TensorError(
            f"{row.name} needs {', '.join(missing)}",
            where=name,
            fix=f"pass {', '.join(part.suffix for part in row.tensors)}",
        )
    found: dict[str, Array] = {}
    for part in row.tensors:
        if part.suffix != "weight_shape":  # it repeats the shape, in I32 or I64; nothing computes with it
            dtypes = [part.dtype, *([also] if (also := _ALSO.get((row.name, part.suffix))) else [])]
            found[part.suffix] = stored_array(tensors[part.suffix], dtypes, part.suffix, name)
    return found


def one_scale(suffix: str, stored: Array, name: str) -> np.float32:
    """Return the scale of a whole tensor."""
    if stored.size != 1 or not np.isfinite(stored).all() or stored.reshape(-1)[0] <= 0:
        shown = stored.reshape(-1)[:3].tolist()
        raise TensorError(f"{suffix} is {shown}, not one positive number", where=name, fix="check the source file")
    return np.float32(stored.reshape(-1)[0])


def no_nan_scale(row: Format, scale: Array, name: str) -> None:
    """A NaN block scale would decode to NaN weights."""
    bad = (scale == _E8M0_NAN) if row.block != FORMATS["nvfp4"].block else ((scale & E4M3_NAN) == E4M3_NAN)
    if bad.any():
        at = tuple(int(i) for i in np.argwhere(bad)[0])
        raise TensorError(f"weight_scale is NaN at {at}", where=name, fix="check the source file")
