"""A reader that keeps what will be needed twice: the forward decodes a layer's weights, then they are encoded."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from halfbyte.source.checkpoint import Checkpoint
from halfbyte.source.headers import TensorInfo
from halfbyte.source.read import Reader, Stamps


class HoldingReader(Reader):
    """Reads tensors once while they are held; what is not held is read from the disk, as ever."""

    def __init__(self, checkpoint: Checkpoint, seen: Stamps | None = None) -> None:
        super().__init__(checkpoint, seen)
        self._held: dict[tuple[str, int, int], NDArray[np.uint8]] = {}  # by place: rows of a tensor share its name

    def hold(self, infos: Iterable[TensorInfo]) -> None:
        """Read tensors and keep them. One thread at a time holds; others may read meanwhile."""
        for info in sorted(infos, key=lambda info: (info.shard, info.begin)):
            self._held[_place(info)] = super().raw(info)

    def release(self, infos: Iterable[TensorInfo]) -> None:
        """Forget tensors."""
        for info in infos:
            self._held.pop(_place(info), None)

    def raw(self, info: TensorInfo) -> NDArray[np.uint8]:
        """Return a tensor's bytes."""
        found = self._held.get(_place(info))
        return super().raw(info) if found is None else found

    def pieces(self, info: TensorInfo) -> Iterator[tuple[int, NDArray[np.uint8]]]:
        """Yield a tensor's bytes in pieces with their offsets; a held one is one piece."""
        found = self._held.get(_place(info))
        if found is None:
            yield from super().pieces(info)
        elif len(found):
            yield 0, found


def _place(info: TensorInfo) -> tuple[str, int, int]:
    return info.shard, info.begin, info.end
