"""Checks of tensors before kernels run. Kernels rely on them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from halfbyte.errors import TensorError, UsageError
from halfbyte.formats.encoded import Array, stored_array
from halfbyte.formats.format import Format
from halfbyte.formats.reference.floats import BF16_INFINITY, E4M3_NAN
from halfbyte.formats.registry import FORMATS
from halfbyte.ui.suggest import did_you_mean

_E8M0_NAN = 0xFF
_MATRIX = 2


def known_format(name: str) -> Format:
    """Return a format by name; raise UsageError if it is unknown."""
    if name not in FORMATS:
        raise UsageError(f"unknown format '{name}'", fix=did_you_mean(name, FORMATS))
    return FORMATS[name]


def known_method(row: Format, method: str | None) -> str:
    """Return the method, or the format's default if None; raise UsageError if it is unknown."""
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
    """Raise TensorError unless the shape is a matrix of whole blocks, because engines load nothing else."""
    if len(shape) != _MATRIX or 0 in shape:
        raise TensorError(f"shape {list(shape)} is not a matrix", where=name, fix="keep this tensor as it is")
    if block and shape[1] % block:
        raise TensorError(
            f"K = {shape[1]} is not a multiple of the block size of {block}",
            where=name,
            fix="keep this tensor in BF16; engines do not load partial blocks",
        )


def finite(top_bits: int, name: str, what: str = "weights") -> None:
    """Raise TensorError for infinities and NaN, which encoding would turn into ordinary numbers."""
    if top_bits >= BF16_INFINITY:
        kind = "an infinity" if top_bits == BF16_INFINITY else "NaN"
        raise TensorError(
            f"the {what} contain {kind}", where=name, fix="check the source file; halfbyte does not guess such values"
        )


def same_shape(suffix: str, tensor: Array, expected: tuple[int, ...], name: str) -> None:
    """Raise TensorError if a tensor does not have the expected shape."""
    if tensor.shape != expected:
        raise TensorError(
            f"{suffix} has shape {list(tensor.shape)}, not {list(expected)}", where=name, fix="check the source file"
        )


def finite_array(suffix: str, values: Array, name: str) -> None:
    """Raise TensorError for non-finite scales."""
    if not np.isfinite(values).all():
        raise TensorError(f"{suffix} is not finite", where=name, fix="check the source file")


def finite_codes(code: Array, name: str) -> None:
    """Raise TensorError for NaN among E4M3 weights."""
    if ((code & E4M3_NAN) == E4M3_NAN).any():
        raise TensorError("the weights contain NaN", where=name, fix="check the source file")


def parts(row: Format, tensors: Mapping[str, Any], name: str) -> dict[str, Array]:
    """Return the format's tensors in the dtypes that kernels expect; raise TensorError for missing or wrong ones."""
    missing = [part.suffix for part in row.tensors if part.suffix not in tensors]
    if missing:
        raise TensorError(
            f"{row.name} requires {', '.join(missing)}",
            where=name,
            fix=f"pass {', '.join(part.suffix for part in row.tensors)}",
        )
    arrays: dict[str, Array] = {}
    for part in row.tensors:
        if part.suffix != "weight_shape":  # redundant, in I32 or I64
            dtypes = [part.dtype] if part.also is None else [part.dtype, part.also]
            arrays[part.suffix] = stored_array(tensors[part.suffix], dtypes, part.suffix, name)
    return arrays


def one_scale(suffix: str, stored: Array, name: str) -> np.float32:
    """Return the scale of a whole tensor; raise TensorError unless it is one positive number."""
    if stored.size != 1 or not np.isfinite(stored).all() or stored.reshape(-1)[0] <= 0:
        shown = stored.reshape(-1)[:3].tolist()
        raise TensorError(f"{suffix} is {shown}, not one positive number", where=name, fix="check the source file")
    return np.float32(stored.reshape(-1)[0])


def no_nan_scale(row: Format, scale: Array, name: str) -> None:
    """Raise TensorError for NaN block scales."""
    is_e4m3 = row.tensors[1].dtype == "F8_E4M3"
    bad = ((scale & E4M3_NAN) == E4M3_NAN) if is_e4m3 else (scale == _E8M0_NAN)
    if bad.any():
        at = tuple(int(i) for i in np.argwhere(bad)[0])
        raise TensorError(f"weight_scale is NaN at {at}", where=name, fix="check the source file")
