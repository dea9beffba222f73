"""Encode stacks in the output format, copy them to the host through pinned slots, and pass them to the writer threads.

The tensor scales of a layer come first, then codes, one launch per projection from INT4. Inference engines fuse the
gate and up projections and use one tensor scale for both, set by the larger amax.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray

from halfbyte.checkpoint.headers import TensorInfo
from halfbyte.engine.activation_scales import fixed_scales
from halfbyte.engine.backends.cuda.experts import Stack, to_bf16
from halfbyte.engine.backends.cuda.observe import DeviceHessians
from halfbyte.engine.backends.cuda.placement import GPTQ_EXPERTS, is_direct
from halfbyte.engine.backends.cuda.streams import Clock, Lane, Mark, Slot, Slots
from halfbyte.engine.jobs import JobInputs, as_bytes
from halfbyte.engine.runner import Countdown, EncodedSpan, Runner
from halfbyte.errors import TensorError
from halfbyte.families.family import DOWN, GATE, UP
from halfbyte.formats.encoded import Quality
from halfbyte.formats.format import DeviceCodec
from halfbyte.formats.gpu.blocks import Blocks, bf16_amax, int4_amax
from halfbyte.formats.gpu.gptq import DeviceFactors, column_orders, factor
from halfbyte.formats.int4 import INT4
from halfbyte.formats.registry import FORMATS
from halfbyte.plan.rules import Job
from halfbyte.recipe.decisions import Quantize

_FUSED = (GATE, UP)


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
        return [_expert_of(linear.module) for linear in self.stack.of.linears]

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

    def __init__(
        self,
        stacks: Mapping[str, Stack],
        format: str,
        method: str,
        group: int,
        hessians: DeviceHessians | None = None,
    ) -> None:
        self._factors = _LayerFactors(hessians) if hessians is not None else None
        self._stacks, self._format, self._method, self._group = stacks, format, method, group
        self._count = len(next(iter(stacks.values())).of.linears)
        self._amax = {name: torch.cat([_amax(part) for part in self._parts(stack, group)])
                      for name, stack in stacks.items()}  # fmt: skip
        for name, stack in stacks.items():
            _check_finite(stack, self._amax[name].cpu().numpy())
        if all(name in stacks for name in _FUSED):
            self._amax |= dict.fromkeys(_FUSED, torch.maximum(*(self._amax[name] for name in _FUSED)))
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
        size = self._count if direct else self._group
        if self._factors is not None:
            size = max(self._group, GPTQ_EXPERTS)  # few experts would leave the device waiting for launches
        encoded = list(self._each(size))
        self._factors = None  # frees the Hessians before the next layer runs
        return encoded

    def groups(self) -> Iterator[list[EncodedStack]]:
        """Encode one group of experts per iteration, to limit memory."""
        return self._each(self._group)

    def _each(self, size: int) -> Iterator[list[EncodedStack]]:
        for begin in range(0, self._count, size):
            end = min(begin + size, self._count)
            yield [self._stack(name, stack.part(begin, end), slice(begin, end)) for name, stack in self._stacks.items()]

    def _stack(self, name: str, part: Stack, where: slice) -> EncodedStack:
        amax = self._amax[name][where]
        factors = None if self._factors is None else self._factors.of(part)
        blocks = _encode(part, amax, self._format, self._method, factors)
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
    assert gpu is not None  # `has_encoder`
    return gpu.codec()


def _amax(part: Stack) -> torch.Tensor:
    if part.of.format == INT4.name:
        return int4_amax(part.tensors["weight_packed"], part.tensors["weight_scale"])
    return bf16_amax(to_bf16(part))


class _LayerFactors:
    """Inverse-Hessian factors for GPTQ: the gate and up projections share them, each down projection has its own."""

    def __init__(self, hessians: DeviceHessians) -> None:
        self._by_expert = hessians.by_expert
        self._orders = column_orders(hessians.by_expert)
        shared = hessians.shared[None]
        self._shared = factor(shared, column_orders(shared))

    def of(self, part: Stack) -> DeviceFactors:
        """Return the factors of some experts' projection."""
        if part.of.name != DOWN:
            return self._shared
        numbers = [int(linear.expert or 0) for linear in part.of.linears]
        return factor(self._by_expert[numbers], self._orders[numbers])


def _encode(part: Stack, amax: torch.Tensor, format: str, method: str, factors: DeviceFactors | None = None) -> Blocks:
    codec = _codec(format)
    if factors is not None:
        assert codec.compensate is not None
        return codec.compensate(to_bf16(part), amax, factors)
    encode = codec.encode
    assert encode is not None
    if part.of.format == INT4.name:
        return encode((part.tensors["weight_packed"], part.tensors["weight_scale"]), amax, method)
    return encode(to_bf16(part), amax, method)


def _check_finite(stack: Stack, amax: NDArray[np.float32]) -> None:
    for linear, largest in zip(stack.of.linears, amax, strict=True):
        if not np.isfinite(largest):
            fix = "check the source file; halfbyte does not guess such values"
            raise TensorError("the weights hold an infinity or NaN", where=linear.module, fix=fix)


class _Sent(NamedTuple):
    """Experts that are being copied to the host."""

    encoded: list[EncodedStack]
    slot: Slot
    spans: list[tuple[int, list[TensorInfo]]]  # offset in the slot, and adjacent tensors
    sums: list[torch.Tensor]
    copied: Mark


class CopyBack:
    """Copies encoded experts to the host; `writing` collects the futures of the writer threads."""

    def __init__(
        self,
        runner: Runner,
        slots: Slots,
        group: int,
        quantize: Quantize | None,
        writing: deque[Future[None]],
        clock: Clock,
    ) -> None:
        self._runner, self._slots, self._group, self._quantize = runner, slots, group, quantize
        self._writing, self._clock = writing, clock

    def write(
        self,
        lane: Lane,
        encoded: Iterable[list[EncodedStack]],
        jobs: Sequence[Job],
        inputs_of: Callable[[Job], JobInputs],
    ) -> None:
        """Copy encoded experts to the host, one slot at a time, in `lane`, and pass them to the writer threads."""
        by_expert: dict[str, list[Job]] = {}
        for job in jobs:
            by_expert.setdefault(_expert_of(job.linears[0].module), []).append(job)
        ready: deque[_Sent] = deque()
        for part in encoded:
            for begin in range(0, part[0].count, self._group):
                group = [stack.part(begin, min(begin + self._group, stack.count)) for stack in part]
                group_jobs = [job for name in group[0].experts() for job in by_expert.get(name, [])]
                if group_jobs:
                    ready.append(self._send_back(lane, group, group_jobs, inputs_of))
                while len(ready) > 1:
                    self._hand_over(ready.popleft())
        while ready:
            self._hand_over(ready.popleft())

    def _send_back(
        self,
        lane: Lane,
        encoded: list[EncodedStack],
        jobs: Sequence[Job],
        inputs_of: Callable[[Job], JobInputs],
    ) -> _Sent:
        """Start copying experts to the host, in file order."""
        assert self._quantize is not None
        format = self._quantize.format
        tensors = {name: tensor for stack in encoded for name, tensor in stack.tensors(format).items()}
        scalars = {name: array for job in jobs for name, array in inputs_of(job).tensors.items()}
        scalars |= {name: array for job in jobs for name, array in fixed_scales(job, self._quantize).items()}
        scalars |= {name: array for stack in encoded for name, array in stack.scalars(format).items()}
        names = (spec.name for job in jobs for spec in job.outputs)
        targets = [info for name in names if (info := self._runner.place(name)) is not None]
        with self._clock("waiting for a writer"):
            slot = self._slots.take()
        spans: list[tuple[int, list[TensorInfo]]] = []
        at = 0
        with lane:
            begin = lane.mark()
            for info in sorted(targets, key=lambda info: (info.shard, info.begin)):
                last = spans[-1][1][-1] if spans else None
                if last is None or (last.shard, last.end) != (info.shard, info.begin):
                    spans.append((at, []))
                spans[-1][1].append(info)
                target = slot.memory[at : at + info.nbytes]
                if info.name in tensors:
                    target.copy_(tensors[info.name], non_blocking=True)
                else:
                    target.copy_(torch.frombuffer(as_bytes(scalars[info.name]), dtype=torch.uint8))
                at += info.nbytes
            sums = [stack.quality.to("cpu", non_blocking=True) for stack in encoded]
            copied = lane.mark()
        self._clock.between("to the host", begin, copied, at)
        return _Sent(encoded, slot, spans, sums, copied)

    def _hand_over(self, sent: _Sent) -> None:
        """Pass copied experts to the writer threads; the slot is released after the last write."""
        sent.copied.wait()
        errors = {module: quality for stack, sums in zip(sent.encoded, sent.sums, strict=True)
                  for module, quality in stack.errors(sums).items()}  # fmt: skip
        memory = sent.slot.memory.numpy()
        futures: list[Future[None]] = []
        for at, places in sent.spans:
            nbytes = places[-1].end - places[0].begin
            futures += self._runner.put(EncodedSpan(places, memory[at : at + nbytes].data, errors))
        slot = sent.slot  # the callback must not hold `sent`, which would keep tensors on the device until written
        when_done(futures, lambda: self._slots.give_back(slot))
        self._writing.extend(futures)


def _expert_of(module: str) -> str:
    return module.rpartition(".")[0]


def when_done(futures: Sequence[Future[None]], callback: Callable[[], None]) -> None:
    """Call `callback` once, when all futures are done or failed."""
    if not futures:
        callback()
        return
    countdown = Countdown(len(futures), callback)
    for future in futures:
        future.add_done_callback(lambda _: countdown.decrement())
