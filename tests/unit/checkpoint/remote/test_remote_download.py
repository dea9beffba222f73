"""Download of one shard with every fault: it arrives complete and correct, or not at all."""

import hashlib
import threading
import time
from dataclasses import replace
from email.utils import formatdate

import pytest
from range_hub import REPO, Fault

from halfbyte.checkpoint.remote import download as downloads
from halfbyte.checkpoint.remote.address import HubAddress
from halfbyte.checkpoint.remote.download import StoppedError, download, part_path
from halfbyte.checkpoint.remote.hub import open_hub
from halfbyte.errors import CheckpointError, MachineError

SHARD = "model-00001-of-000006.safetensors"
MEBIBYTE = 1 << 20


class Fetch:
    """A hub with one shard, and a download folder."""

    def __init__(self, hub, source, folder):
        self.hub, self.folder = hub, folder
        self.raw = (source / SHARD).read_bytes()
        self.lines = []
        self.stop = threading.Event()
        folder.mkdir()

    def __call__(self, *, verify=True):
        files = open_hub(HubAddress(REPO))
        checksum = files.entries[SHARD].checksum if verify else None
        return download(files, SHARD, self.folder, checksum, stop=self.stop, tell=self.lines.append)

    def arrived(self):
        return (self.folder / SHARD).read_bytes() == self.raw and not part_path(self.folder, SHARD).exists()

    def begins(self):
        return [begin for name, begin, _ in self.hub.asked if name == SHARD]


@pytest.fixture
def fetch(pico, serve_hub, tmp_path):
    source = pico("int4-k2.6")
    return Fetch(serve_hub(source), source, tmp_path / "here")


def test_a_shard_is_downloaded_and_verified(fetch):
    assert fetch() == len(fetch.raw)
    assert fetch.arrived()
    assert fetch.begins() == [0]
    assert "/s, SHA-256 verified" in fetch.lines[-1]


def test_a_cut_connection_is_resumed(fetch):
    fetch.hub.faults.append(Fault(SHARD, "cut", times=2, after_nbytes=1 << 14))
    assert fetch() == len(fetch.raw)
    assert fetch.arrived()
    begins = fetch.begins()
    assert len(begins) == 3
    assert 0 == begins[0] < begins[1] < begins[2]
    assert fetch.hub.sent[SHARD] == len(fetch.raw)  # no byte twice


def test_server_errors_are_retried(fetch):
    fetch.hub.faults += [Fault(SHARD, "status", status=status) for status in (500, 502, 503, 504, 408)]
    fetch()
    assert fetch.arrived()


@pytest.mark.parametrize("asked", ["0.3", "date"])
def test_retry_after_is_honored(fetch, asked):
    header = formatdate(time.time() + 2, usegmt=True) if asked == "date" else asked
    fetch.hub.faults.append(Fault(SHARD, "status", status=429, headers={"Retry-After": header}))
    begin = time.monotonic()
    fetch()
    assert fetch.arrived()
    assert time.monotonic() - begin > 0.29
    assert "status 429; retrying in" in fetch.lines[0]


def test_retries_are_limited(fetch):
    fetch.hub.faults.append(Fault(SHARD, "status", times=99, status=500))
    with pytest.raises(MachineError, match=rf"'{SHARD}' cannot be read: the Hub returned status 500 \(8 times"):
        fetch()
    assert len(fetch.begins()) == downloads.BACKOFF.attempts
    assert not (fetch.folder / SHARD).exists()


def test_cuts_without_progress_count_as_retries(fetch):
    fetch.hub.faults.append(Fault(SHARD, "cut", times=99, after_nbytes=0))
    with pytest.raises(MachineError, match="cannot be read: the connection was lost"):
        fetch()
    assert len(fetch.begins()) == downloads.BACKOFF.attempts


def test_progress_resets_the_retries(fetch, monkeypatch):
    monkeypatch.setattr(downloads, "_ENOUGH_NBYTES", 4096)
    fetch.hub.faults.append(Fault(SHARD, "cut", times=99, after_nbytes=4096))  # a cut each 16 KiB
    monkeypatch.setattr(downloads, "BACKOFF", replace(downloads.BACKOFF, attempts=2))
    fetch()
    assert fetch.arrived()
    assert len(fetch.begins()) > 3


def test_permanent_errors_are_not_retried(fetch):
    fetch.hub.faults.append(Fault(SHARD, "status", status=404))
    with pytest.raises(CheckpointError, match="status 404"):
        fetch()
    assert len(fetch.begins()) == 1


def test_wrong_content_is_fetched_again_and_then_refused(fetch):
    fetch.hub.faults.append(Fault(SHARD, "wrong", times=1))
    fetch()
    assert fetch.arrived()
    assert "SHA-256 does not match the Hub; fetching it again" in fetch.lines[0]
    (fetch.folder / SHARD).unlink()
    fetch.hub.faults.append(Fault(SHARD, "wrong", times=2))
    with pytest.raises(CheckpointError, match="was damaged in two downloads: its SHA-256 is ") as caught:
        fetch()
    assert hashlib.sha256(fetch.raw).hexdigest() in caught.value.what
    assert [path for path in fetch.folder.rglob("*") if path.is_file()] == []  # nothing that is wrong stays


def test_a_server_that_ignores_ranges(fetch):
    fetch.hub.faults += [Fault(SHARD, "cut", after_nbytes=1 << 14), Fault(SHARD, "rangeless", from_byte=1)]
    fetch()
    assert fetch.arrived()
    assert len(fetch.begins()) == 2


def test_a_file_of_another_length_is_refused(fetch):
    fetch.hub.faults.append(Fault(SHARD, "longer", times=9))
    with pytest.raises(CheckpointError, match="does not match the Hub's listing"):
        fetch()
    assert not (fetch.folder / SHARD).exists()


def test_a_response_with_another_range_is_refused(fetch):
    fetch.hub.faults.append(Fault(SHARD, "shifted", times=2))
    fetch(verify=False)  # a checksum would notice it too, and fetch all of it again
    assert fetch.arrived()


def test_a_slow_server_is_not_an_error(fetch):
    fetch.hub.faults.append(Fault(SHARD, "slow", seconds=0.05))
    fetch()
    assert fetch.arrived()
    assert len(fetch.begins()) == 1


def test_a_silent_server_is_an_error(fetch, monkeypatch):
    from halfbyte.checkpoint.remote import hub

    monkeypatch.setattr(hub, "TIMEOUT_S", 0.3)
    fetch.hub.faults.append(Fault(SHARD, "hang", after_nbytes=1 << 14))
    fetch()
    assert fetch.arrived()
    assert 0 < fetch.begins()[1] < len(fetch.raw)


def test_a_local_copy_is_hashed_and_not_fetched(fetch):
    part = part_path(fetch.folder, SHARD)
    part.parent.mkdir()
    part.write_bytes(fetch.raw[:30_000])
    assert fetch() == len(fetch.raw) - 30_000
    assert fetch.arrived()
    assert fetch.begins() == [30_000]
    fetch.hub.forget()
    assert fetch() == 0  # a whole one of an earlier run
    assert fetch.arrived()
    assert fetch.begins() == []
    assert "already cached, SHA-256 verified" in fetch.lines[-1]


@pytest.mark.parametrize("left", [b"torn" * 8000, b"x" * 200_000])
def test_a_damaged_local_copy_is_discarded(fetch, left):
    part = part_path(fetch.folder, SHARD)
    part.parent.mkdir()
    part.write_bytes(left)
    fetch()
    assert fetch.arrived()


def test_without_a_checksum_a_local_copy_is_fetched_again(fetch):
    part = part_path(fetch.folder, SHARD)
    part.parent.mkdir()
    part.write_bytes(b"torn" * 1000)
    assert fetch(verify=False) == len(fetch.raw)
    assert fetch.arrived()
    assert "size verified, no checksum available" in fetch.lines[-1]


def test_a_stop_keeps_the_partial_download(fetch):
    fetch.hub.faults.append(Fault(SHARD, "slow", seconds=0.05))
    threading.Timer(0.15, fetch.stop.set).start()
    with pytest.raises(StoppedError):
        fetch()
    left = part_path(fetch.folder, SHARD).read_bytes()
    assert left
    assert left == fetch.raw[: len(left)]
    assert not (fetch.folder / SHARD).exists()


def test_a_full_disk_is_reported(fetch, monkeypatch):
    from halfbyte.checkpoint.remote import download as module

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "_write_all", full)
    with pytest.raises(MachineError, match="the disk is full"):
        fetch()
