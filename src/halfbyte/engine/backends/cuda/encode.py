"""Encode stacks in the output format: tensor scales of a layer first, then codes, one launch per projection from INT4.

Inference engines fuse the gate and up projections and use one tensor scale for both, set by the larger amax.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray

from halfbyte.engine.backends.cuda.decode import to_bf16
from halfbyte.engine.backends.cuda.projections import is_direct
from halfbyte.engine.backends.cuda.stacks import Stack
from halfbyte.errors import TensorError
from halfbyte.families.family import GATE, UP
from halfbyte.formats.encoded import Quality
from halfbyte.formats.format import DeviceCodec
from halfbyte.formats.gpu.blocks import Blocks, bf16_amax, int4_amax
from halfbyte.formats.int4 import INT4
from halfbyte.formats.registry import FORMATS

FUSED = (GATE, UP)


@dataclass(frozen=True, slots=True, eq=False)
class EncodedStack:
    """Encoded experts of a projection on the device; `quality` has a row per sum and a column per expert."""

    stack: Stack
    packed: torch.Tensor  # U8 [E, N, K / 2]
    scale: torch.Tensor  # U8 [E, N, K / block]
    weights: int
    quality: torch.Tensor  # FP64 [4, E]
    tensor_scales: NDArray[np.float32] | None  # [E], on the host: weight_scale_2 or weight_global_scale

    @property
    def count(self) -> int:
        """Return the number of experts."""
        return len(self.stack.of.linears)

    def experts(self) -> list[str]:
        """Return the module names of the experts."""
        return [linear.module.rpartition(".")[0] for linear in self.stack.of.linears]

    def tensors(self, format: str) -> dict[str, torch.Tensor]:
        """Return codes and block scales by name, as bytes on the device."""
        parts = zip(FORMATS[format].tensors, (self.packed, self.scale), strict=False)
        return {
            f"{linear.module}.{part.suffix}": row
            for part, tensor in parts
            for linear, row in zip(self.stack.of.linears, tensor.reshape(self.count, -1), strict=True)
        }

    def scalars(self, format: str) -> dict[str, NDArray[np.float32]]:
        """Return the tensor scales by name, if the format has them."""
        if self.tensor_scales is None:
            return {}
        suffix = FORMATS[format].tensors[2].suffix
        return {
            f"{linear.module}.{suffix}": self.tensor_scales[at : at + 1]
            for at, linear in enumerate(self.stack.of.linears)
        }

    def errors(self, sums: torch.Tensor) -> dict[str, Quality]:
        """Return the encoding error of each linear, from a host copy of `quality`."""
        records = cast("list[tuple[float, float, float, float]]", sums.t().tolist())
        modules = (linear.module for linear in self.stack.of.linears)
        return {
            module: Quality(self.weights, *record[:3], int(record[3]))
            for module, record in zip(modules, records, strict=True)
        }

    def part(self, begin: int, end: int) -> EncodedStack:
        """Return a range of the experts, without copying."""
        where = slice(begin, end)
        tensor_scales = None if self.tensor_scales is None else self.tensor_scales[where]
        quality = self.quality[:, where]
        return EncodedStack(
            self.stack.part(begin, end), self.packed[where], self.scale[where], self.weights, quality, tensor_scales
        )


class LayerEncoder:
    """Encodes the stacks of a layer. The constructor synchronizes, to raise for infinite or NaN weights."""

    def __init__(self, stacks: Mapping[str, Stack], format: str, method: str, group: int) -> None:
        self._stacks, self._format, self._method, self._group = stacks, format, method, group
        self._count = len(next(iter(stacks.values())).of.linears)
        self._amax = {name: torch.cat([_amax(part) for part in self._parts(stack, group)])
                      for name, stack in stacks.items()}  # fmt: skip
        for name, stack in stacks.items():
            _check_finite(stack, self._amax[name].cpu().numpy())
        if all(name in stacks for name in FUSED):
            self._amax |= dict.fromkeys(FUSED, torch.maximum(*(self._amax[name] for name in FUSED)))
        self._scales_by_projection = {name: self._tensor_scales(stack) for name, stack in stacks.items()}

    def _parts(self, stack: Stack, group: int) -> list[Stack]:
        return [stack.part(begin, min(begin + group, self._count)) for begin in range(0, self._count, group)]

    def _tensor_scales(self, stack: Stack) -> NDArray[np.float32] | None:
        scales_of = _codec(self._format).tensor_scales
        if scales_of is None:
            return None
        tensor_scales: NDArray[np.float32] = scales_of(self._amax[stack.of.name], self._method).cpu().numpy()
        for linear, scale in zip(stack.of.linears, tensor_scales, strict=True):
            if not np.isfinite(scale):
                what = f"2688 / amax, which {self._format} stores, overflows FP32"
                fix = "use the nvfp4 format, or keep this tensor unquantized: its weights are almost zero"
                raise TensorError(what, where=linear.module, fix=fix)
        return tensor_scales

    def parts(self) -> list[list[EncodedStack]]:
        """Start encoding every projection; in groups if it goes through BF16, which is four times as large.

        The work is queued on the device.
        """
        direct = all(is_direct(stack.of.format) for stack in self._stacks.values())
        return list(self._each(self._count if direct else self._group))

    def groups(self) -> Iterator[list[EncodedStack]]:
        """Encode one group of experts per iteration, to limit memory."""
        return self._each(self._group)

    def _each(self, size: int) -> Iterator[list[EncodedStack]]:
        for begin in range(0, self._count, size):
            end = min(begin + size, self._count)
            yield [self._stack(name, stack.part(begin, end), slice(begin, end)) for name, stack in self._stacks.items()]

    def _stack(self, name: str, part: Stack, where: slice) -> EncodedStack:
        amax = self._amax[name][where]
        blocks = _encode(part, amax, self._format, self._method)
        assert blocks.quality is not None
        weights, *sums = blocks.quality
        tensor_scales = self._scales_by_projection[name]
        quality = torch.stack([column.double() for column in sums])
        return EncodedStack(
            part,
            blocks.packed,
            blocks.scale,
            weights,
            quality,
            tensor_scales[where] if tensor_scales is not None else None,
        )


def _codec(format: str) -> DeviceCodec:
    gpu = FORMATS[format].gpu
    assert gpu is not None  # `projections.has_encoder`
    return gpu.codec()


def _amax(part: Stack) -> torch.Tensor:
    if part.of.format == INT4.name:
        return int4_amax(part.tensors["weight_packed"], part.tensors["weight_scale"])
    return bf16_amax(to_bf16(part))


def _encode(part: Stack, amax: torch.Tensor, format: str, method: str) -> Blocks:
    encode = _codec(format).encode
    assert encode is not None
    if part.of.format == INT4.name:
        return encode((part.tensors["weight_packed"], part.tensors["weight_scale"]), amax, method)
    return encode(to_bf16(part), amax, method)


def _check_finite(stack: Stack, amax: NDArray[np.float32]) -> None:
    for linear, largest in zip(stack.of.linears, amax, strict=True):
        if not np.isfinite(largest):
            fix = "check the source file; halfbyte does not guess such values"
            raise TensorError("the weights hold an infinity or NaN", where=linear.module, fix=fix)
