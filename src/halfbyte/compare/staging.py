"""Layers of all models, ready to run, in the order in which they do; on a device the next is read while one runs."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple

import torch

from halfbyte.compare.sides import Side
from halfbyte.cuda.lanes import Lane
from halfbyte.forward.experts import Expert
from halfbyte.forward.layer import DecoderLayer
from halfbyte.terminal.device_options import CPU

if TYPE_CHECKING:
    from typing_extensions import Self


@contextmanager
def exact_products() -> Generator[None]:
    """FP32 products of a GPU are of FP32, not of TF32 with its ten bits, whatever the process has set for itself."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


class Staged(NamedTuple):
    """A layer that can run."""

    layer: DecoderLayer
    experts: Expert | None


class Layers:
    """Gives one layer after the other: for each index, that of every side. A context manager that ends its thread."""

    def __init__(self, sides: Sequence[Side]) -> None:
        count = sides[0].model.config.num_hidden_layers
        self._todo = deque((side, index) for index in range(count) for side in sides)
        self._ahead = None if sides[0].device == CPU else ThreadPoolExecutor(1)
        self._device = torch.device(sides[0].device)
        self._lane = Lane(self._device)
        self._coming: Future[Staged] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._ahead is not None:
            self._ahead.shutdown(cancel_futures=True)

    def take(self) -> Staged:
        """Return the next layer; nobody may hold the one before it any more, whose memory the one after it takes."""
        if self._ahead is None:
            return self._stage(*self._todo.popleft())
        coming = self._coming or self._ahead.submit(self._stage, *self._todo.popleft())
        staged = coming.result()
        self._coming = self._ahead.submit(self._stage, *self._todo.popleft()) if self._todo else None
        return staged

    def settle(self) -> None:
        """Wait until the device has done what it was sent: only then may a layer be freed, for another lane's use."""
        if self._device.type == "cuda":
            torch.cuda.current_stream(self._device).synchronize()

    def _stage(self, side: Side, index: int) -> Staged:
        if self._ahead is None:
            layer = DecoderLayer(side.model, index, side.tensors, side.dtype)
        else:
            with self._lane:
                layer = DecoderLayer(side.model, index, side.tensors, side.dtype, side.device)
            self._lane.mark().wait()
        return Staged(layer, side.experts(index) if layer.is_moe else None)
