"""Read tensor data with positioned reads that threads can share.

`CachingReader` keeps tensors that are needed twice: by the forward pass and by the encoder.
"""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from halfbyte.checkpoint.contained_paths import open_inside
from halfbyte.checkpoint.folder import Checkpoint, shard_path
from halfbyte.checkpoint.headers import TensorInfo
from halfbyte.checkpoint.remote.shard_cache import CachedShardFile
from halfbyte.errors import CheckpointError
from halfbyte.machine.direct_io import File

if TYPE_CHECKING:
    from typing_extensions import Self

# Types that NumPy lacks are read as bit patterns.
NUMPY_DTYPES = {
    "F64": np.float64, "F32": np.float32, "F16": np.float16, "BF16": np.uint16,
    "F8_E4M3": np.uint8, "F8_E5M2": np.uint8, "F8_E8M0": np.uint8,
    "I64": np.int64, "I32": np.int32, "I16": np.int16, "I8": np.int8,
    "U64": np.uint64, "U32": np.uint32, "U16": np.uint16, "U8": np.uint8, "BOOL": np.uint8,
}  # fmt: skip

ShardStamps = Mapping[str, tuple[int, int] | None]


def shard_stamps(checkpoint: Checkpoint) -> ShardStamps:
    """Return the size and mtime of every local shard; empty for a remote source."""
    if checkpoint.remote is not None:
        return {}
    return {shard: _stamp(checkpoint.root, shard) for shard in checkpoint.shards}


def _stamp(root: Path, shard: str) -> tuple[int, int] | None:
    try:
        status = shard_path(root, shard).stat()
    except OSError:
        return None
    return status.st_size, status.st_mtime_ns


class Reader:
    """Thread-safe reader of one checkpoint's shards."""

    def __init__(self, checkpoint: Checkpoint, seen: ShardStamps | None = None) -> None:
        self._root: Path = checkpoint.root
        self._remote = checkpoint.remote
        self._files: dict[str, File | CachedShardFile] = {}
        self.seen = shard_stamps(checkpoint) if seen is None else seen
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:  # after Ctrl-C, a thread may still be opening a shard
            files, self._files = list(self._files.values()), {}
        for file in files:
            file.close()

    def tensor(self, info: TensorInfo) -> NDArray[Any]:
        """Read a tensor; BF16 and FP8 are returned as bit patterns."""
        tensor: NDArray[Any] = self.raw(info).view(NUMPY_DTYPES[info.dtype]).reshape(info.shape)
        return np.require(tensor, requirements="A")  # copies unaligned tensors: kernels need alignment

    def raw(self, info: TensorInfo) -> NDArray[np.uint8]:
        """Read a tensor's bytes."""
        try:
            return self._file(info.shard).read(info.begin, info.nbytes)
        except EOFError:
            raise _too_short(info) from None

    def read_into(self, info: TensorInfo, memory: NDArray[np.uint8]) -> None:
        """Read a tensor's bytes into an array of its size."""
        try:
            self._file(info.shard).read_into(info.begin, memory)
        except EOFError:
            raise _too_short(info) from None

    def pieces(self, info: TensorInfo) -> Iterator[tuple[int, NDArray[np.uint8]]]:
        """Yield a tensor's bytes in pieces with their offsets, because an embedding can have gigabytes."""
        try:
            for at, piece in self._file(info.shard).pieces(info.begin, info.end):
                yield at - info.begin, piece
        except EOFError:
            raise _too_short(info) from None

    def _file(self, shard: str) -> File | CachedShardFile:
        with self._lock:
            if shard not in self._files:
                self._files[shard] = self._local(shard) if self._remote is None else self._remote.open(shard)
            return self._files[shard]

    def _local(self, shard: str) -> File:
        return File(shard_path(self._root, shard), opened=open_inside(self._root, Path(shard)))

    @contextmanager
    def wake_waiters_on_error(self) -> Generator[None]:
        """After an error or Ctrl-C, wake the threads that wait for a shard to be fetched."""
        try:
            yield
        except BaseException:
            if self._remote is not None:
                self._remote.stop()
            raise

    def refuse_changes(self) -> None:
        """Raise if a shard has changed since its stamp was taken."""
        changed = [shard for shard, stamp in self.seen.items() if _stamp(self._root, shard) != stamp]
        if changed:
            what, fix = "the shard changed while it was read", "do not modify the source, and start in a new folder"
            raise CheckpointError(what, where=changed[0], fix=fix)


def _too_short(info: TensorInfo) -> CheckpointError:
    where, fix = f"{info.shard}: {info.name}", "the file changed while it was read: download it again"
    return CheckpointError("the shard ends inside a tensor", where=where, fix=fix)


class CachingReader(Reader):
    """Reader that keeps held tensors in memory and reads all others from disk."""

    def __init__(self, checkpoint: Checkpoint, seen: ShardStamps | None = None) -> None:
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
