"""Refuse invalid scales, and different scales where an engine uses one for several linears."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from halfbyte.errors import CheckpointError
from halfbyte.formats.format import E4M3, INT4
from halfbyte.formats.registry import FORMATS, input_scale_suffixes
from halfbyte.serve.vllm_plugin.stored import CALIBRATE

PER_TENSOR = (
    *(part.suffix for format in FORMATS.values() for part in format.tensors if part.is_tensor_scale),
    *input_scale_suffixes(),
)
_WRITE_AGAIN = "write the checkpoint again with halfbyte quantize SRC OUT -r RECIPE"
_NIBBLES = 0x77
_INT4_ZEROS = -0x77777778  # 0x88888888: eight codes of 8, which stand for 0
_E8M0_NAN = 0xFF


def refuse_invalid_scales(module: str, format: str, tensors: Mapping[str, torch.Tensor]) -> None:
    """Refuse scales of a linear that are NaN, infinite or negative, or zero for a block of nonzero codes."""
    for suffix, tensor in tensors.items():
        if "scale" not in suffix:
            continue
        if tensor.dtype == torch.uint8:  # E8M0: powers of two
            bad = tensor == _E8M0_NAN
        else:
            values = tensor.float()
            bad = ~torch.isfinite(values) | (values < 0)
            if suffix in PER_TENSOR or FORMATS[format].element is E4M3:
                bad |= values == 0
        if bad.any():
            value = "NaN" if tensor.dtype == torch.uint8 else f"{float(tensor.float()[bad].reshape(-1)[0]):g}"
            fix = CALIBRATE if suffix.startswith("input") else _WRITE_AGAIN
            raise CheckpointError(f"its {suffix} is {value}, which is not a valid scale", where=module, fix=fix)
    _refuse_zero_blocks(module, format, tensors)


def _refuse_zero_blocks(module: str, format: str, tensors: Mapping[str, torch.Tensor]) -> None:
    """Refuse a zero scale for a block of nonzero codes, which it would erase."""
    scale = tensors.get("weight_scale")
    if scale is None or scale.dtype == torch.uint8 or FORMATS[format].element is E4M3 or not (scale.float() == 0).any():
        return
    if FORMATS[format].element is INT4:
        used = tensors["weight_packed"] != _INT4_ZEROS
    else:
        used = (tensors["weight_packed" if "weight_packed" in tensors else "weight"] & _NIBBLES) != 0
    blocks = used.reshape(*scale.shape, -1).any(-1)
    if (blocks & (scale.float() == 0)).any():
        what = "a weight_scale is 0, but the codes of its block are not"
        raise CheckpointError(what, where=module, fix=_WRITE_AGAIN)


def refuse_different_scales(module: str, suffix: str, values: Mapping[str, torch.Tensor]) -> None:
    """Refuse different scales of fused linears: engines use only the first or the largest."""
    first, *others = values
    for other in others:
        if not torch.equal(values[first], values[other]):
            a, b = (f"{float(values[name]):.9g}" for name in (first, other))
            what = f"{suffix} of {first} and {other} differ ({a} and {b}), and engines use one for both"
            fix = CALIBRATE if suffix.startswith("input") else _WRITE_AGAIN
            raise CheckpointError(what, where=module, fix=fix)
