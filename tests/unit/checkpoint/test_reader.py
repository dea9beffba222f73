"""Tensors in the layout that kernels need, at any offset in the file."""

import json

import numpy as np
import pytest

from halfbyte.checkpoint.folder import Checkpoint
from halfbyte.checkpoint.headers import TensorInfo
from halfbyte.checkpoint.reader import Reader
from halfbyte.errors import CheckpointError


def write_odd_shard(folder, values):
    """Write an I32 tensor at an odd file offset, which headers allow."""
    header = {"a": {"dtype": "U8", "shape": [3], "data_offsets": [0, 3]}}
    header["b"] = {"dtype": "I32", "shape": list(values.shape), "data_offsets": [3, 3 + values.nbytes]}
    text = json.dumps(header).encode()
    begin = 8 + len(text) + 3
    (folder / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + b"abc" + values.tobytes())
    info = TensorInfo("b", "I32", values.shape, "model.safetensors", begin, begin + values.nbytes)
    return Checkpoint(folder, {}, {"b": info}, {info.shard: info.end}), info


def test_tensors_at_odd_offsets_are_aligned(tmp_path):
    values = np.arange(100_000, dtype=np.int32).reshape(100, 1000)
    checkpoint, info = write_odd_shard(tmp_path, values)
    with Reader(checkpoint) as reader:
        tensor = reader.tensor(info)
        pieces = list(reader.pieces(info))
    assert info.begin % 2 == 1
    assert tensor.flags.aligned
    assert tensor.flags.c_contiguous
    assert np.array_equal(tensor, values)
    assert b"".join(piece.tobytes() for _, piece in pieces) == values.tobytes()
    assert pieces[0][0] == 0


def test_a_shard_that_shrank_is_named(tmp_path):
    checkpoint, info = write_odd_shard(tmp_path, np.zeros((10, 10), np.int32))
    path = tmp_path / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    with Reader(checkpoint) as reader:
        with pytest.raises(CheckpointError, match="ends inside a tensor") as caught:
            reader.tensor(info)
        with pytest.raises(CheckpointError, match="ends inside a tensor"):
            list(reader.pieces(info))
    assert "model.safetensors: b" in str(caught.value.where)


def test_a_thread_may_open_a_shard_while_the_reader_closes(tmp_path, monkeypatch):
    checkpoint, info = write_odd_shard(tmp_path, np.zeros((10, 10), np.int32))
    (tmp_path / "second.safetensors").write_bytes((tmp_path / info.shard).read_bytes())
    second = info._replace(shard="second.safetensors")
    reader = Reader(checkpoint)
    with reader:
        first = reader._file(info.shard)
        close = first.close
        monkeypatch.setattr(first, "close", lambda: (reader.raw(second), close()), raising=False)
    with reader:  # closes the shard that was opened last
        assert list(reader._files) == ["second.safetensors"]
