"""A reader that caches tensors needed twice: by the forward pass and by the encoder."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from halfbyte.checkpoint.folder import Checkpoint
from halfbyte.checkpoint.headers import TensorInfo
from halfbyte.checkpoint.reader import Reader, Stamps


class HoldingReader(Reader):
    """Reader that keeps held tensors in memory and reads all others from disk."""

    def __init__(self, checkpoint: Checkpoint, seen: Stamps | None = None) -> None:
        super().__init__(checkpoint, seen)
        self._held: dict[tuple[str, int, int], NDArray[np.uint8]] = {}  # by byte range: rows share a tensor's name

    def hold(self, infos: Iterable[TensorInfo]) -> None:
        """Read tensors and keep them in memory. Only one thread may call this at a time; others may read."""
        for info in sorted(infos, key=lambda info: (info.shard, info.begin)):
            self._held[_extent(info)] = super().raw(info)

    def release(self, infos: Iterable[TensorInfo]) -> None:
        """Drop tensors from memory."""
        for info in infos:
            self._held.pop(_extent(info), None)

    def raw(self, info: TensorInfo) -> NDArray[np.uint8]:
        """Return a tensor's bytes."""
        cached = self._held.get(_extent(info))
        return super().raw(info) if cached is None else cached

    def pieces(self, info: TensorInfo) -> Iterator[tuple[int, NDArray[np.uint8]]]:
        """Yield a tensor's bytes in pieces with their offsets; a held tensor is a single piece."""
        cached = self._held.get(_extent(info))
        if cached is None:
            yield from super().pieces(info)
        elif len(cached):
            yield 0, cached


def _extent(info: TensorInfo) -> tuple[str, int, int]:
    return info.shard, info.begin, info.end
