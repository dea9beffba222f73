"""A checkpoint's bytes, when a job needs them: positioned reads that many threads share, forgotten once used.

Not mmap: a page fault blocks the thread that computes and shows in no profile, and mapped pages count as resident
memory, so that "one layer in memory" could be neither kept nor seen.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halfbyte.errors import CheckpointError
from halfbyte.source.checkpoint import Checkpoint, shard_path
from halfbyte.source.headers import TensorInfo

# Bit patterns where NumPy has no such type.
NUMPY_DTYPES = {
    "F64": np.float64, "F32": np.float32, "F16": np.float16, "BF16": np.uint16,
    "F8_E4M3": np.uint8, "F8_E5M2": np.uint8, "F8_E8M0": np.uint8,
    "I64": np.int64, "I32": np.int32, "I16": np.int16, "I8": np.int8,
    "U64": np.uint64, "U32": np.uint32, "U16": np.uint16, "U8": np.uint8, "BOOL": np.uint8,
}  # fmt: skip


PIECE_NBYTES = 1 << 24  # what is only copied is never in memory as a whole


class Reader:
    """Open shards of one checkpoint; any thread may read."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._root: Path = checkpoint.root
        self._files: dict[str, int] = {}
        self._lock = threading.Lock()

    def __enter__(self) -> Reader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for file in self._files.values():
            os.close(file)
        self._files.clear()

    def tensor(self, info: TensorInfo) -> NDArray[Any]:
        """Read a tensor; BF16 and FP8 come as bit patterns."""
        return self.raw(info).view(NUMPY_DTYPES[info.dtype]).reshape(info.shape)

    def raw(self, info: TensorInfo) -> NDArray[np.uint8]:
        """Read a tensor's bytes."""
        buffer = np.empty(info.nbytes, np.uint8)
        self._fill(buffer.data, info, 0)
        return buffer

    def pieces(self, info: TensorInfo) -> Iterator[tuple[int, memoryview]]:
        """Yield a tensor's bytes in pieces with their offsets, in one buffer: an embedding has gigabytes."""
        buffer = memoryview(bytearray(min(PIECE_NBYTES, info.nbytes)))
        for start in range(0, info.nbytes, PIECE_NBYTES):
            piece = buffer[: min(PIECE_NBYTES, info.nbytes - start)]
            self._fill(piece, info, start)
            yield start, piece

    def _fill(self, view: memoryview, info: TensorInfo, start: int) -> None:
        file, done = self._file(info.shard), 0
        while done < len(view):
            count = os.preadv(file, [view[done:]], info.begin + start + done)
            if count == 0:
                where = f"{info.shard}: {info.name}"
                raise CheckpointError("the shard ends inside a tensor", where=where, fix="it changed while it was read")
            done += count
        # Nobody reads these bytes again; left in the page cache they would push the output out before it is hashed.
        os.posix_fadvise(file, info.begin + start, len(view), os.POSIX_FADV_DONTNEED)

    def _file(self, shard: str) -> int:
        with self._lock:
            if shard not in self._files:
                self._files[shard] = os.open(shard_path(self._root, shard), os.O_RDONLY | os.O_CLOEXEC)
            return self._files[shard]
