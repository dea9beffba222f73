"""Tensors that are read once and used twice: the same bytes, cached no longer than needed."""

import numpy as np
import pytest
from pico import write_pico

from halfbyte.checkpoint.folder import open_checkpoint
from halfbyte.checkpoint.reader import CachingReader, Reader


@pytest.fixture
def checkpoint(tmp_path):
    return open_checkpoint(write_pico(tmp_path / "source", "spread"))


@pytest.fixture
def reads(monkeypatch):
    """The names of all tensors read from the disk, in order."""
    found = []
    raw, pieces = Reader.raw, Reader.pieces
    monkeypatch.setattr(Reader, "raw", lambda self, info: found.append(info.name) or raw(self, info))
    monkeypatch.setattr(Reader, "pieces", lambda self, info: found.append(info.name) or pieces(self, info))
    return found


def all_bytes(pieces):
    return b"".join(piece.tobytes() for _, piece in pieces)


def test_held_tensors_have_the_same_bytes(checkpoint):
    infos = list(checkpoint.tensors.values())
    with Reader(checkpoint) as plain, CachingReader(checkpoint) as holding:
        holding.hold(infos[::2])
        for info in infos:
            assert np.array_equal(holding.raw(info), plain.raw(info))
            assert holding.tensor(info).shape == plain.tensor(info).shape
            assert holding.tensor(info).tobytes() == plain.tensor(info).tobytes()
            assert all_bytes(holding.pieces(info)) == all_bytes(plain.pieces(info))
            ends = [start + len(piece) for start, piece in holding.pieces(info)]
            assert ends[-1:] == ([info.nbytes] if info.nbytes else [])


def test_held_tensors_are_read_once_in_file_order(checkpoint, reads):
    infos = list(checkpoint.tensors.values())
    with CachingReader(checkpoint) as reader:
        reader.hold(reversed(infos))
        assert reads == [info.name for info in sorted(infos, key=lambda info: (info.shard, info.begin))]
        for info in infos:
            reader.raw(info)
            reader.tensor(info)
            all_bytes(reader.pieces(info))
        assert len(reads) == len(infos)


def test_released_tensors_are_read_again(checkpoint, reads):
    first, second = list(checkpoint.tensors.values())[:2]
    with CachingReader(checkpoint) as reader:
        reader.hold([first, second])
        reader.release([first])
        reader.release([first])  # has no effect
        reader.raw(second)
        assert len(reads) == 2
        reader.raw(first)
        all_bytes(reader.pieces(first))
    assert reads[2:] == [first.name, first.name]


def test_a_tensor_without_elements_has_no_pieces(tmp_path):
    from safetensors.numpy import save_file

    folder = write_pico(tmp_path / "source", "bf16")
    save_file({"nothing": np.empty((0, 4), np.float32)}, folder / "model.safetensors")
    checkpoint = open_checkpoint(folder)
    info = checkpoint.tensors["nothing"]
    with CachingReader(checkpoint) as reader:
        reader.hold([info])
        assert list(reader.pieces(info)) == []
        assert reader.tensor(info).shape == (0, 4)
