"""Bytes at any offset and of any length, past the page cache and through it."""

import errno
import os
import random
import threading

import pytest

from halfbyte.machine import direct_io
from halfbyte.machine.direct_io import BLOCK, File, aligned

NBYTES = 5 * direct_io._SMALL_NBYTES + 777
EDGES = (0, 1, 511, 512, BLOCK - 1, BLOCK, BLOCK + 1, 7 * BLOCK, direct_io._SMALL_NBYTES)


@pytest.fixture(params=["direct", "buffered", "refused"])
def way(request, monkeypatch):
    """With O_DIRECT, without it, and with a file system that accepts the flag but fails later."""
    if request.param == "buffered":
        monkeypatch.delattr(os, "O_DIRECT")
    if request.param == "refused":
        _refuse(monkeypatch, "preadv")
        _refuse(monkeypatch, "pwrite")
    return request.param


def _refuse(monkeypatch, name):
    real = getattr(os, name)

    def refusing(file, *rest):
        import fcntl

        if fcntl.fcntl(file, fcntl.F_GETFL) & os.O_DIRECT:
            raise OSError(errno.EINVAL, "Invalid argument")
        return real(file, *rest)

    monkeypatch.setattr(os, name, refusing)


def test_reads_any_byte_range(tmp_path, way):
    data = random.Random(1).randbytes(NBYTES)
    (tmp_path / "file").write_bytes(data)
    file = File(tmp_path / "file")
    for begin in EDGES:
        for nbytes in (0, *EDGES, NBYTES - begin):
            assert file.read(begin, nbytes).tobytes() == data[begin : begin + nbytes]
    with pytest.raises(EOFError):
        file.read(NBYTES - 10, 11)
    with pytest.raises(EOFError):
        file.read(0, NBYTES + BLOCK)
    file.close()


def test_writes_any_byte_range_and_nothing_around_it(tmp_path, way):
    source = random.Random(2)
    expected = bytearray(NBYTES)
    file = File(tmp_path / "file", create=True)
    file.reserve(NBYTES)
    for begin in EDGES:
        for nbytes in (*EDGES, NBYTES - begin):
            data = source.randbytes(nbytes)
            expected[begin : begin + nbytes] = data
            file.write(memoryview(data), begin)
    file.sync()
    file.close()
    assert (tmp_path / "file").read_bytes() == expected


def test_threads_write_neighbours_that_share_blocks(tmp_path):
    source = random.Random(3)
    cuts = sorted(source.sample(range(1, 40 * direct_io._SMALL_NBYTES), 30))
    data = source.randbytes(40 * direct_io._SMALL_NBYTES)
    parts = list(zip([0, *cuts], [*cuts, len(data)], strict=True))
    source.shuffle(parts)
    file = File(tmp_path / "file", create=True)
    file.reserve(len(data))

    def write(mine):
        for begin, end in mine:
            file.write(memoryview(data)[begin:end], begin)

    threads = [threading.Thread(target=write, args=(parts[i::4],)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    file.sync()
    assert file.read(0, len(data)).tobytes() == data
    file.close()


def test_pieces_cover_the_range_and_stay_valid(tmp_path, way, monkeypatch):
    monkeypatch.setattr(direct_io, "PIECE_NBYTES", 4 * BLOCK)
    data = random.Random(4).randbytes(NBYTES)
    (tmp_path / "file").write_bytes(data)
    file = File(tmp_path / "file")
    pieces = list(file.pieces(1000, NBYTES - 5))  # a later piece must not overwrite an earlier one
    file.close()
    assert b"".join(piece.tobytes() for _, piece in pieces) == data[1000 : NBYTES - 5]
    assert [at for at, _ in pieces][1:] == [at + piece.size for at, piece in pieces][:-1]


def test_other_errors_are_not_hidden(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    file = File(tmp_path / "file", create=True)
    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(OSError, match="No space"):
        file.write(memoryview(bytes(NBYTES)), 3)
    file.close()


def test_memory_is_aligned():
    for nbytes in (1, BLOCK, 3 * BLOCK + 1):
        memory = aligned(nbytes)
        assert memory.ctypes.data % BLOCK == 0
        assert nbytes <= memory.size < nbytes + BLOCK
