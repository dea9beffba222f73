"""safetensors headers: read and written like the library, rejected if they are inconsistent."""

import json
import os
import struct
from pathlib import Path

import numpy as np
import pytest

from halfbyte.checkpoint.headers import (
    DTYPE_NBYTES,
    TensorSpec,
    lay_out,
    parse_header,
    read_header,
)
from halfbyte.errors import CheckpointError

A = {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}
B = {"dtype": "BF16", "shape": [4], "data_offsets": [24, 32]}


def write(path: Path, header: object, payload_nbytes: int = 32, *, length: int | None = None) -> Path:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(raw) if length is None else length) + raw + bytes(payload_nbytes))
    return path


def refused(path: Path) -> CheckpointError:
    with pytest.raises(CheckpointError) as caught:
        read_header(path, path.name)
    assert caught.value.fix
    return caught.value


@pytest.fixture
def shard(tmp_path) -> Path:
    return tmp_path / "x.safetensors"


def test_offsets_count_from_the_start_of_the_file(shard):
    write(shard, {"__metadata__": {"format": "pt"}, "b": B, "a": A})
    found = read_header(shard, shard.name)
    start = shard.stat().st_size - 32
    assert list(found) == ["b", "a"]
    assert (found["a"].begin, found["a"].end, found["a"].nbytes) == (start, start + 24, 24)
    assert (found["b"].dtype, found["b"].shape, found["b"].shard) == ("BF16", (4,), "x.safetensors")


def test_empty_tensors_and_scalars_are_tensors(shard):
    write(shard, {"e": {"dtype": "U8", "shape": [0, 4], "data_offsets": [0, 0]}, "a": A, "b": B})
    assert read_header(shard, shard.name)["e"].nbytes == 0
    write(shard, {"s": {"dtype": "F32", "shape": [], "data_offsets": [0, 4]}}, 4)
    assert read_header(shard, shard.name)["s"].shape == ()


def test_tensors_share_their_shapes_and_dtypes(shard):
    """JSON creates new strings for each, a hundred megabytes for half a million tensors."""
    far = {"dtype": "F32", "shape": [1000, 2000], "data_offsets": [0, 8_000_000]}
    write(shard, {"a": far, "b": {**far, "data_offsets": [8_000_000, 16_000_000]}}, 16_000_000)
    first, second = read_header(shard, shard.name).values()
    assert first.shape == (1000, 2000)
    assert first.shape is second.shape
    assert first.dtype is second.dtype


BAD = {
    "empty file": (b"", 0, None, "too few for a header"),
    "beyond the file": ({"a": A, "b": B}, 32, 10**6, "the header should have 1,000,000 bytes, but the file has"),
    "absurd length": ({"a": A}, 24, 2**63, "the header should have 9,223,372,036,854,775,808 bytes"),
    "not JSON": (b'{"a": ', 0, None, "the header is not JSON"),
    "not UTF-8": (b'{"\xff": 1}', 0, None, "the header is not JSON"),
    "too deep": (b"[" * 200_000, 0, None, "the header is not JSON"),
    "not an object": ([A], 24, None, "the header is not a JSON object"),
    "cut off": ({"a": A, "b": B}, 31, None, "but the file has"),
    "too long": ({"a": A, "b": B}, 33, None, "the file has 1 bytes after its last tensor"),
    "overlap": ({"a": A, "b": {**B, "data_offsets": [20, 28]}}, 28, None, "the tensor overlaps the tensor before it"),
    "gap": ({"a": A, "b": {**B, "data_offsets": [28, 36]}}, 36, None, "the tensor leaves a gap before it"),
    "out of range": ({"a": A, "b": {**B, "data_offsets": [2**40, 2**40 + 8]}}, 32, None, "leaves a gap before it"),
    "negative": ({"a": {**A, "data_offsets": [-24, 0]}}, 0, None, "shape or offsets are not valid counts"),
    "backwards": ({"a": {**A, "data_offsets": [24, 0]}}, 24, None, "shape or offsets are not valid counts"),
    "twice": (b'{"a": %b, "a": %b}' % ((json.dumps(A).encode(),) * 2), 24, None, "duplicate header entry"),
    "unknown dtype": ({"a": {**A, "dtype": "F4"}}, 24, None, "unknown dtype 'F4'"),
    "dtype no word": ({"a": {**A, "dtype": ["F32"]}}, 24, None, "unknown dtype ['F32']"),
    "shape and bytes": ({"a": {**A, "shape": [2, 4]}}, 24, None, "F32 [2, 4] needs 32 bytes, the header gives 24"),
    "negative shape": ({"a": {**A, "shape": [-2, -3]}}, 24, None, "shape or offsets are not valid counts"),
    "fractional shape": ({"a": {**A, "shape": [2.0, 3]}}, 24, None, "shape or offsets are not valid counts"),
    "true as a number": ({"a": {**A, "shape": [True, 6]}}, 24, None, "shape or offsets are not valid counts"),
    "empty but wide": ({"a": {"dtype": "F32", "shape": [0, 2**61], "data_offsets": [0, 0]}}, 0, None, "than any file"),
    "33 dimensions": ({"a": {"dtype": "F32", "shape": [1] * 33, "data_offsets": [0, 4]}}, 4, None, "than any file"),
    "no offsets": ({"a": {"dtype": "F32", "shape": [2, 3]}}, 24, None, "the header entry is incomplete"),
    "three offsets": ({"a": {**A, "data_offsets": [0, 24, 24]}}, 24, None, "the header entry is incomplete"),
    "entry no object": ({"a": 7}, 0, None, "the header entry is incomplete"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_an_inconsistent_header_is_refused(shard, case):
    header, payload_nbytes, length, sentence = BAD[case]
    if case == "empty file":
        shard.write_bytes(b"\0\0")
    else:
        write(shard, header, payload_nbytes, length=length)
    error = refused(shard)
    assert sentence in error.what
    assert "x.safetensors" in error.where


def test_the_error_names_the_damaged_tensor(shard):
    write(shard, {"a": A, "b": {**B, "dtype": "F99"}})
    assert refused(shard).where == "x.safetensors: b"


def test_a_folder_or_a_pipe_is_not_a_shard(tmp_path):
    import os

    (tmp_path / "folder.safetensors").mkdir()
    os.mkfifo(tmp_path / "pipe.safetensors")  # opening it would block forever
    for name in ("folder", "pipe"):
        assert "is not a file" in refused(tmp_path / f"{name}.safetensors").what


def test_an_unreadable_shard_is_named(shard, monkeypatch):
    write(shard, {"a": A, "b": B})

    def denied(*args, **kwargs):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "open", denied)
    assert refused(shard).what == "cannot read shard 'x.safetensors': Permission denied"


def test_the_layout_matches_what_safetensors_writes(tmp_path):
    from safetensors.torch import save_file
    from torch import bfloat16, bool, float8_e4m3fn, float32, int32, int64, uint8, zeros

    dtypes = {"BF16": bfloat16, "F8_E4M3": float8_e4m3fn, "F32": float32, "I32": int32, "I64": int64, "U8": uint8}
    dtypes["BOOL"] = bool
    random = np.random.default_rng(0)
    specs = [
        TensorSpec(f"m.{random.integers(100)}.{i}", name, tuple(int(n) for n in random.integers(0, 5, i % 3)))
        for i, name in enumerate(list(dtypes) * 5)
    ]
    tensors = {spec.name: zeros(spec.shape, dtype=dtypes[spec.dtype]) for spec in specs}
    for metadata in ({"format": "pt"}, None):
        save_file(tensors, tmp_path / "theirs", metadata=metadata)
        head, infos = lay_out(specs, "theirs", metadata=metadata is not None)
        theirs = (tmp_path / "theirs").read_bytes()
        assert theirs[: len(head)] == head
        assert len(theirs) == infos[-1].end
        assert read_header(tmp_path / "theirs", "theirs") == {info.name: info for info in infos}


def test_every_dtype_has_a_rank_and_a_size():
    for dtype in DTYPE_NBYTES:
        head, (info,) = lay_out([TensorSpec("x", dtype, (3,))], "s")
        assert info.nbytes == 3 * DTYPE_NBYTES[dtype]
        assert len(head) % 8 == 0


def test_a_tensor_name_that_is_not_unicode():
    raw = json.dumps({"a\ud800": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}}).encode()
    with pytest.raises(CheckpointError, match="a tensor name is not Unicode"):
        parse_header(raw, 8 + len(raw) + 1, "model.safetensors")
