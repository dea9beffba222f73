"""Decode the packed tensors of a linear to BF16, bit for bit as a BF16 recipe writes them.

Uses the NumPy reference on a CPU, which needs no compiler, and the kernels of `formats.gpu` on a GPU.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from halfbyte.errors import UsageError
from halfbyte.formats.format import Format
from halfbyte.formats.registry import FORMATS

Tensors = Mapping[str, torch.Tensor]


def expand(format: str, tensors: Tensors) -> torch.Tensor:
    """Return the weights [N, K] in BF16, decoded from the tensors of a format by suffix."""
    row = FORMATS.get(format)
    on_gpu = next(iter(tensors.values())).is_cuda
    if row is None or row.is_plain or (on_gpu and row.gpu is None):
        raise UsageError(f"{format} cannot be emulated", fix="serve it without --quantization halfbyte_emulate")
    return _on_gpu(row, tensors) if on_gpu else _on_cpu(row, tensors)


def _on_cpu(format: Format, tensors: Tensors) -> torch.Tensor:
    with np.errstate(over="ignore"):  # values beyond BF16's range become infinity, as in the GPU kernels
        bits = format.reference().decode({suffix: _bits(tensor) for suffix, tensor in tensors.items()})
    return torch.from_numpy(np.ascontiguousarray(bits).view(np.int16)).view(torch.bfloat16)


def _bits(tensor: torch.Tensor) -> Any:
    """Return a tensor as a NumPy array, with BF16 and E4M3 as bit patterns."""
    plain = {torch.bfloat16: torch.uint16, torch.float8_e4m3fn: torch.uint8}.get(tensor.dtype)
    return (tensor.contiguous() if plain is None else tensor.contiguous().view(plain)).numpy()


def _on_gpu(format: Format, tensors: Tensors) -> torch.Tensor:
    """Decode a stack of one linear."""
    assert format.gpu is not None
    return format.gpu.codec().decode({suffix: tensor.contiguous()[None] for suffix, tensor in tensors.items()})[0]
