"""Encode stacks in the output format: tensor scales of a layer first, then codes, one launch per projection from INT4.

Inference engines fuse gate_proj and up_proj and use one tensor scale for both, set by the larger amax.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray

from halfbyte.engine.backends.cuda.decode import to_bf16
from halfbyte.engine.backends.cuda.projections import DIRECT
from halfbyte.engine.backends.cuda.stacks import Stack
from halfbyte.errors import TensorError
from halfbyte.formats.encoded import Quality
from halfbyte.formats.gpu.amax import bf16_amax, int4_amax
from halfbyte.formats.gpu.blocks import Blocks, global_scale, stored_global_scale, tensor_scale
from halfbyte.formats.gpu.mxfp4 import bf16_to_mxfp4, int4_to_mxfp4
from halfbyte.formats.gpu.nvfp4 import bf16_to_nvfp4, int4_to_nvfp4
from halfbyte.formats.gpu.sweep import settle_bf16, settle_int4, sweep_bf16, sweep_int4
from halfbyte.formats.registry import FORMATS

FUSED = ("gate_proj", "up_proj")
_INT4 = "int4"


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
        if not self._format.startswith("nvfp4"):
            return None
        stored = tensor_scale if self._format == "nvfp4" else stored_global_scale
        scale_rule = global_scale if self._method == "compressed-tensors" else stored
        tensor_scales: NDArray[np.float32] = scale_rule(self._amax[stack.of.name]).cpu().numpy()
        for linear, scale in zip(stack.of.linears, tensor_scales, strict=True):
            if not np.isfinite(scale):
                what = "2688 / amax, which nvfp4_ct stores, overflows FP32"
                fix = "use the nvfp4 format, or keep this tensor unquantized: its weights are almost zero"
                raise TensorError(what, where=linear.module, fix=fix)
        return tensor_scales

    def parts(self) -> list[list[EncodedStack]]:
        """Start encoding every projection; in groups if it goes through BF16, which is four times as large.

        The work is queued on the device.
        """
        direct = all(stack.of.format in DIRECT for stack in self._stacks.values())
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
        scales = _sweep(part, amax) if self._method == "mse" else None
        blocks = _encode(part, amax, self._format, self._method, scales)
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


def _amax(part: Stack) -> torch.Tensor:
    if part.of.format == _INT4:
        return int4_amax(part.tensors["weight_packed"], part.tensors["weight_scale"])
    return bf16_amax(to_bf16(part))


def _sweep(part: Stack, amax: torch.Tensor) -> torch.Tensor:
    """Return block scales by the MSE sweep; close calls are decided on the host."""
    if part.of.format == _INT4:
        packed, scale = part.tensors["weight_packed"], part.tensors["weight_scale"]
        sweep = sweep_int4(packed, scale, amax)
        settle_int4(sweep, packed, scale, amax)
    else:
        weight = to_bf16(part)
        sweep = sweep_bf16(weight, amax)
        settle_bf16(sweep, weight, amax)
    return sweep.scale


def _encode(part: Stack, amax: torch.Tensor, format: str, method: str, scales: torch.Tensor | None) -> Blocks:
    rule = "max" if method == "mse" else method
    if part.of.format == _INT4:
        packed, scale = part.tensors["weight_packed"], part.tensors["weight_scale"]
        if format.startswith("mxfp4"):
            return int4_to_mxfp4(packed, scale, spelling=format)
        return int4_to_nvfp4(packed, scale, amax, method=rule, given=scales)
    weight = to_bf16(part)
    if format.startswith("mxfp4"):
        return bf16_to_mxfp4(weight, spelling=format)
    return bf16_to_nvfp4(weight, amax, method=rule, given=scales)


def _check_finite(stack: Stack, amax: NDArray[np.float32]) -> None:
    for linear, largest in zip(stack.of.linears, amax, strict=True):
        if not np.isfinite(largest):
            fix = "check the source file; halfbyte does not guess such values"
            raise TensorError("the weights hold an infinity or NaN", where=linear.module, fix=fix)
