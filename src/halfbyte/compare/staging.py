"""Stage the layers of all models in execution order; on a GPU, prefetch the next layer while one runs."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple

import torch

from halfbyte.compare.models import Side
from halfbyte.engine.backends.cuda.streams import Lane
from halfbyte.forward.experts import Expert
from halfbyte.forward.model import DecoderLayer
from halfbyte.machine.devices import CPU

if TYPE_CHECKING:
    from typing_extensions import Self


@contextmanager
def exact_products() -> Generator[None]:
    """Disable TF32, so that FP32 products on a GPU are computed in FP32."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


class Staged(NamedTuple):
    """A layer ready to run."""

    layer: DecoderLayer
    experts: Expert | None


class Layers:
    """Return layers one by one: for each index, that of every side. A context manager that stops its thread."""

    def __init__(self, sides: Sequence[Side]) -> None:
        count = sides[0].model.layers
        self._remaining = deque((side, index) for index in range(count) for side in sides)
        self._prefetcher = None if sides[0].device == CPU else ThreadPoolExecutor(1)
        self._device = torch.device(sides[0].device)
        self._lane = Lane(self._device)
        self._next: Future[Staged] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._prefetcher is not None:
            self._prefetcher.shutdown(cancel_futures=True)

    def take(self) -> Staged:
        """Return the next layer; callers must have released the previous one, whose memory is reused."""
        if self._prefetcher is None:
            return self._stage(*self._remaining.popleft())
        future = self._next or self._prefetcher.submit(self._stage, *self._remaining.popleft())
        staged = future.result()
        self._next = self._prefetcher.submit(self._stage, *self._remaining.popleft()) if self._remaining else None
        return staged

    def settle(self) -> None:
        """Wait for the device's pending work, after which a layer may be freed for use by another stream."""
        if self._device.type == "cuda":
            torch.cuda.current_stream(self._device).synchronize()

    def _stage(self, side: Side, index: int) -> Staged:
        if self._prefetcher is None:
            layer = side.model.decoder_layer(index, side.tensors, side.dtype)
        else:
            with self._lane:
                layer = side.model.decoder_layer(index, side.tensors, side.dtype, side.device)
            self._lane.mark().wait()
        return Staged(layer, side.experts(index) if layer.is_moe else None)
