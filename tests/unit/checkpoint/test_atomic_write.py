"""The digest of a file that is written out of order."""

import hashlib
import random
import threading

import pytest

from halfbyte.checkpoint import atomic_write as write
from halfbyte.checkpoint.atomic_write import OrderedDigest, ShardFile, write_json
from halfbyte.checkpoint.hashing import file_sha256
from halfbyte.machine.direct_io import File


def pieces(data, count, seed):
    cuts = sorted(random.Random(seed).sample(range(1, len(data)), count - 1))
    return [(begin, data[begin:end]) for begin, end in zip([0, *cuts], [*cuts, len(data)], strict=True)]


@pytest.mark.parametrize("window", [0, 5_000, 1 << 28])
@pytest.mark.parametrize("order", ["file", "shuffled", "reversed"])
def test_digest_of_pieces_in_any_order(tmp_path, monkeypatch, window, order):
    monkeypatch.setattr(write, "WAITING_NBYTES", window)
    data = random.Random(5).randbytes(100_000)
    parts = pieces(data, 50, 6)
    if order == "shuffled":
        random.Random(7).shuffle(parts)
    if order == "reversed":
        parts.reverse()
    (tmp_path / "file").write_bytes(data)
    digest, file = OrderedDigest(), File(tmp_path / "file")
    for begin, part in parts:
        digest.add(memoryview(part), begin)
        digest.add(memoryview(b""), begin)  # a tensor without elements has the place of its neighbour
    assert digest.finish(file, len(data)) == hashlib.sha256(data).hexdigest()
    file.close()


def test_pieces_in_order_are_not_read_again(tmp_path):
    digest = OrderedDigest()
    for begin, part in pieces(b"x" * 10_000, 20, 8):
        digest.add(memoryview(part), begin)
    (tmp_path / "empty").touch()
    file = File(tmp_path / "empty")
    assert digest.finish(file, 10_000) == hashlib.sha256(b"x" * 10_000).hexdigest()
    file.close()


def test_digest_of_a_shard_that_threads_write(tmp_path):
    data = random.Random(9).randbytes(1 << 22)
    head, body = data[:100], pieces(data[100:], 200, 10)
    shard = ShardFile(tmp_path / "shard", head, len(data))

    def work(mine):
        for begin, part in mine:
            shard.write(memoryview(part), 100 + begin)

    threads = [threading.Thread(target=work, args=(body[i::4],)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert shard.finish() == hashlib.sha256(data).hexdigest() == file_sha256(tmp_path / "shard")
    assert (tmp_path / "shard").read_bytes() == data


@pytest.mark.parametrize("seed", range(4))
def test_lent_memory_may_be_reused_at_once(tmp_path, seed):
    """Pieces in any order, each in the same buffer, which is overwritten right after the write."""
    dice = random.Random(seed)
    data = dice.randbytes(40 * 1000)
    file = ShardFile(tmp_path / "shard", b"", len(data))
    buffer = bytearray(1000)
    for start in dice.sample(range(0, len(data), 1000), 40):
        buffer[:] = data[start : start + 1000]
        file.write(memoryview(buffer), start, lent=True)
        buffer[:] = bytes(1000)
    assert file.finish() == hashlib.sha256(data).hexdigest()
    assert (tmp_path / "shard").read_bytes() == data


def test_write_json_replaces_the_file_with_indented_json(tmp_path):
    for value in ({"old": 1}, {"name": "Ł", "shards": [1, 2]}):
        write_json(tmp_path / "file.json", value)
    assert (tmp_path / "file.json").read_text() == '{\n "name": "\\u0141",\n "shards": [\n  1,\n  2\n ]\n}\n'
    assert [path.name for path in tmp_path.iterdir()] == ["file.json"]
