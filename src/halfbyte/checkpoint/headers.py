"""Read, validate and write safetensors headers the way the safetensors library does.

A file has an 8-byte header length, that many bytes of JSON, then the tensor data without gaps.
"""

from __future__ import annotations

import errno
import json
import math
import os
import stat
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from functools import lru_cache
from json.encoder import encode_basestring as _quote
from operator import itemgetter
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, cast

from halfbyte.checkpoint.untrusted_files import DuplicateKeyError, parsed, reject_duplicate_keys
from halfbyte.errors import CheckpointError

DTYPE_NBYTES: Mapping[str, int] = {
    "F64": 8, "I64": 8, "U64": 8, "F32": 4, "I32": 4, "U32": 4, "BF16": 2, "F16": 2, "I16": 2, "U16": 2,
    "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1, "I8": 1, "U8": 1, "BOOL": 1,
}  # fmt: skip
_DTYPES = {dtype: dtype for dtype in DTYPE_NBYTES}  # shares one string object among all tensors
# The order in which the safetensors writer lays out tensors: by dtype in this order, then by name.
_WRITE_ORDER = (
    "U64", "I64", "F64", "F32", "U32", "I32", "BF16", "F16", "U16", "I16",
    "F8_E4M3", "F8_E5M2", "F8_E8M0", "I8", "U8", "BOOL",
)  # fmt: skip
_RANK = {dtype: rank for rank, dtype in enumerate(_WRITE_ORDER)}

LENGTH_NBYTES = 8
MAX_HEADER_NBYTES = 100_000_000  # safetensors' own limit
METADATA = "__metadata__"
# The first entry of every header we write. transformers writes it too; some readers reject files without it.
_FORMAT_ENTRY = f'"{METADATA}":{{"format":"pt"}}'
MAX_DIMENSIONS = 32  # NumPy's limit before version 2
MAX_NBYTES = 2**63 - 1  # the largest file offset


class TensorInfo(NamedTuple):
    """A tensor's dtype, shape and byte range; `begin` and `end` are offsets in the shard file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    shard: str
    begin: int
    end: int

    @property
    def nbytes(self) -> int:
        """Return the bytes of the tensor."""
        return self.end - self.begin


_EXTENT = (TensorInfo._fields.index("begin"), TensorInfo._fields.index("end"))


@lru_cache(maxsize=4096)  # called half a million times for a few distinct shapes
def tensor_nbytes(dtype: str, shape: tuple[int, ...]) -> int:
    """Return the size of a tensor in bytes."""
    return DTYPE_NBYTES[dtype] * math.prod(shape)


def read_header(path: Path, shard: str) -> dict[str, TensorInfo]:
    """Read and validate the header of a local shard."""
    raw, file_nbytes = read_raw_header(path, shard)
    return parse_header(raw, file_nbytes, shard)


def read_raw_header(path: Path, shard: str) -> tuple[bytes, int]:
    """Read the raw JSON header of a local shard, and the file size."""
    with _opened(path, shard) as (file, file_nbytes):
        return file.read(header_length(file.read(LENGTH_NBYTES), file_nbytes, shard)), file_nbytes


def read_header_length(path: Path, shard: str) -> int:
    """Read the header length of a local shard."""
    with _opened(path, shard) as (file, file_nbytes):
        return header_length(file.read(LENGTH_NBYTES), file_nbytes, shard)


@contextmanager
def _opened(path: Path, shard: str) -> Generator[tuple[BinaryIO, int]]:
    """Open a regular file without blocking on a pipe."""
    try:
        opened = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(opened, "rb") as file:  # noqa: PTH123 - a descriptor, not a path
            status = os.fstat(opened)
            if not stat.S_ISREG(status.st_mode):
                raise CheckpointError(f"shard '{shard}' is not a file", where=str(path), fix="download it again")
            yield file, status.st_size
    except OSError as error:
        if error.errno == errno.EISDIR:
            raise CheckpointError(f"shard '{shard}' is not a file", where=str(path), fix="download it again") from None
        what = f"cannot read shard '{shard}': {error.strerror}"
        raise CheckpointError(what, where=str(path), fix="check the file and its permissions") from None


def header_length(head: bytes, file_nbytes: int, shard: str) -> int:
    """Return the header length from the first 8 bytes of a file; raise if it cannot be right."""
    if len(head) < LENGTH_NBYTES:
        what = f"the file has {file_nbytes} bytes, too few for a header"
        raise CheckpointError(what, where=shard, fix="download this shard again: it is truncated")
    length = int.from_bytes(head, "little")
    if LENGTH_NBYTES + length > file_nbytes:
        what = f"the header should have {length:,} bytes, but the file has {file_nbytes:,}"
        raise CheckpointError(what, where=shard, fix="download this shard again: it is truncated or not safetensors")
    if length > MAX_HEADER_NBYTES:
        what = f"the header has {length:,} bytes, more than safetensors allows ({MAX_HEADER_NBYTES:,})"
        raise CheckpointError(what, where=shard, fix="the file is damaged or not safetensors: download it again")
    return length


def parse_header(raw: bytes, file_nbytes: int, shard: str) -> dict[str, TensorInfo]:
    """Parse a JSON header into tensors; raise if it does not match the file size."""
    try:
        header = parsed(raw, reject_duplicate_keys)
    except DuplicateKeyError as error:
        raise _damaged("duplicate header entry", error.name, shard) from None
    except ValueError:
        raise CheckpointError("the header is not JSON", where=shard, fix="download this shard again") from None
    if not isinstance(header, dict):
        raise CheckpointError("the header is not a JSON object", where=shard, fix="download this shard again")
    start = LENGTH_NBYTES + len(raw)
    entries = cast("dict[str, Any]", header)
    try:
        "".join(entries).encode()
    except UnicodeEncodeError:
        raise CheckpointError("a tensor name is not Unicode", where=shard, fix="download this shard again") from None
    tensors = {name: _tensor(name, entry, shard, start) for name, entry in entries.items() if name != METADATA}
    _check_layout(tensors, start, file_nbytes, shard)
    return tensors


def _tensor(name: str, entry: Any, shard: str, start: int) -> TensorInfo:
    try:
        dtype, shape, (begin, end) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
    except (TypeError, KeyError, ValueError):
        raise _damaged("the header entry is incomplete", name, shard) from None
    if type(dtype) is not str or dtype not in _DTYPES:
        known = ", ".join(DTYPE_NBYTES)
        raise CheckpointError(f"unknown dtype {dtype!r}", where=f"{shard}: {name}", fix=f"halfbyte knows {known}")
    if {*map(type, shape), type(begin), type(end)} != {int} or min((*shape, begin)) < 0 or end < begin:
        raise _damaged("shape or offsets are not valid counts", name, shard)
    if len(shape) > MAX_DIMENSIONS or end > MAX_NBYTES or (shared := _shared_shape(shape)) is None:
        raise _damaged("shape or offsets are larger than any file", name, shard)
    nbytes = tensor_nbytes(dtype, shared)
    if end - begin != nbytes:
        what = f"{dtype} {list(shape)} needs {nbytes:,} bytes, the header gives {end - begin:,}"
        raise _damaged(what, name, shard)
    return TensorInfo(name, _DTYPES[dtype], shared, shard, start + begin, start + end)


@lru_cache(maxsize=4096)  # pass integers only: True and 1.0 hash like 1
def _shared_shape(shape: tuple[int, ...]) -> tuple[int, ...] | None:
    """Return one tuple shared by all tensors of this shape; None if the shape is larger than any file.

    Zero dimensions count as 1: NumPy rejects an empty tensor whose other dimensions are too large.
    """
    return shape if math.prod(size or 1 for size in shape) * max(DTYPE_NBYTES.values()) <= MAX_NBYTES else None


def _damaged(what: str, name: str, shard: str) -> CheckpointError:
    fix = "the file is damaged or was written incorrectly: download it again"
    return CheckpointError(what, where=f"{shard}: {name}", fix=fix)


def _check_layout(tensors: Mapping[str, TensorInfo], start: int, file_nbytes: int, shard: str) -> None:
    """Raise unless the tensors fill the file without overlaps or gaps."""
    at = start
    for tensor in sorted(tensors.values(), key=itemgetter(*_EXTENT)):
        if tensor.begin != at:
            what = "overlaps the tensor before it" if tensor.begin < at else "leaves a gap before it"
            raise _damaged(f"the tensor {what}", tensor.name, shard)
        at = tensor.end
    if at > file_nbytes:
        what = f"the tensors end at byte {at:,}, but the file has {file_nbytes:,}"
        raise CheckpointError(what, where=shard, fix="download this shard again: it is truncated")
    if at < file_nbytes:
        what = f"the file has {file_nbytes - at:,} bytes after its last tensor"
        raise CheckpointError(what, where=shard, fix="download this shard again")


class TensorSpec(NamedTuple):
    """Name, dtype and shape of a tensor to be written."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Return the bytes of the tensor."""
        return tensor_nbytes(self.dtype, self.shape)


def lay_out(specs: Iterable[TensorSpec], shard: str, *, metadata: bool = True) -> tuple[bytes, list[TensorInfo]]:
    """Return the bytes before the first tensor, and every tensor's byte range.

    They equal the output of the safetensors writer with the metadata `{"format": "pt"}`, or with no metadata.
    """
    ordered = sorted(specs, key=lambda spec: (_RANK[spec.dtype], spec.name))
    entries = [_FORMAT_ENTRY] if metadata else []
    extents: list[tuple[int, int]] = []
    known: dict[tuple[str, tuple[int, ...]], tuple[int, str]] = {}  # a model has few shapes
    at = 0
    for name, dtype, shape in ordered:
        if (dtype, shape) not in known:
            text = json.dumps({"dtype": dtype, "shape": shape}, separators=(",", ":"))
            known[dtype, shape] = tensor_nbytes(dtype, shape), text.removesuffix("}")
        nbytes, text = known[dtype, shape]
        end = at + nbytes
        entries.append(f'{_quote(name)}:{text},"data_offsets":[{at},{end}]}}')
        extents.append((at, end))
        at = end
    raw = ("{" + ",".join(entries) + "}").encode()
    raw += b" " * (-len(raw) % LENGTH_NBYTES)  # tensors start at a multiple of 8
    start = LENGTH_NBYTES + len(raw)
    pairs = zip(ordered, extents, strict=True)
    infos = [TensorInfo(*spec, shard, start + begin, start + end) for spec, (begin, end) in pairs]
    return len(raw).to_bytes(LENGTH_NBYTES, "little") + raw, infos
