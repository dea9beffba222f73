"""Decode the packed tensors of a linear to BF16, bit for bit as a BF16 recipe writes them.

Uses the NumPy reference on a CPU, which needs no compiler, and the kernels of `formats.gpu` on a GPU.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from halfbyte.errors import UsageError
from halfbyte.formats.reference import (
    floats,
    fp8,
    int4,
    mxfp4,
    nvfp4,
)

Tensors = Mapping[str, torch.Tensor]


def expand(format: str, tensors: Tensors, group: int) -> torch.Tensor:
    """Return the weights [N, K] in BF16, decoded from the tensors of a format by suffix."""
    on_gpu = next(iter(tensors.values())).is_cuda
    return _on_gpu(format, tensors) if on_gpu else _on_cpu(format, tensors, group)


def _on_cpu(format: str, tensors: Tensors, group: int) -> torch.Tensor:
    t = {suffix: _bits(tensor) for suffix, tensor in tensors.items()}
    with np.errstate(over="ignore"):  # values beyond BF16's range become infinity, as in the GPU kernels
        bits = _decoded(format, t, group)
    return torch.from_numpy(np.ascontiguousarray(bits).view(np.int16)).view(torch.bfloat16)


def _decoded(format: str, t: Mapping[str, Any], group: int) -> Any:
    match format:
        case "nvfp4":
            return nvfp4.decode(t["weight"], t["weight_scale"], t["weight_scale_2"].reshape(())[()])
        case "nvfp4_ct":
            scale = t["weight_global_scale"].reshape(())[()]
            return nvfp4.decode_compressed_tensors(t["weight_packed"], t["weight_scale"], scale)
        case "mxfp4":
            return mxfp4.decode(t["weight"], t["weight_scale"])
        case "mxfp4_ct":
            return mxfp4.decode(t["weight_packed"], t["weight_scale"])
        case "int4":
            return int4.decode(t["weight_packed"], t["weight_scale"], group)
        case "fp8_block":
            return fp8.decode_block(t["weight"], t["weight_scale_inv"])
        case "fp8_channel":
            scale = t["weight_scale"]
            per_row = scale if scale.dtype == np.float32 else floats.bf16_to_f32(scale)
            return floats.f32_to_bf16(floats.E4M3_VALUES[t["weight"]] * per_row)
        case _:
            raise _unknown(format)


def _bits(tensor: torch.Tensor) -> Any:
    """Return a tensor as a NumPy array, with BF16 and E4M3 as bit patterns."""
    plain = {torch.bfloat16: torch.uint16, torch.float8_e4m3fn: torch.uint8}.get(tensor.dtype)
    return (tensor.contiguous() if plain is None else tensor.contiguous().view(plain)).numpy()


def _on_gpu(format: str, tensors: Tensors) -> torch.Tensor:
    from halfbyte.formats.gpu import decode, fp8  # noqa: PLC0415 - needs Triton

    t = {suffix: tensor.contiguous()[None] for suffix, tensor in tensors.items()}
    if format == "fp8_channel":
        return (tensors["weight"].float() * tensors["weight_scale"].float()).to(torch.bfloat16)
    if format == "fp8_block":
        return fp8.fp8_block_to_bf16(t["weight"], t["weight_scale_inv"])[0]
    packed = t["weight_packed"] if "weight_packed" in t else t["weight"]
    if format == "int4":
        return decode.int4_to_bf16(packed, t["weight_scale"])[0]
    scale = t["weight_scale"].view(torch.uint8)
    if format in ("mxfp4", "mxfp4_ct"):
        return decode.mxfp4_to_bf16(packed, scale)[0]
    if format in ("nvfp4", "nvfp4_ct"):
        suffix = "weight_scale_2" if format == "nvfp4" else "weight_global_scale"
        return decode.nvfp4_to_bf16(packed, scale, tensors[suffix].reshape(1), spelling=format)[0]
    raise _unknown(format)


def _unknown(format: str) -> UsageError:
    return UsageError(f"{format} cannot be emulated", fix="serve it without --quantization halfbyte_emulate")
