"""Startup time of an engine, cold or warm, and where it is reported."""

import os

import pytest

from halfbyte.serve import boot_time
from halfbyte.serve.boot_time import VARIABLE, boot_time_of, cached_before, cached_pages, record_boot, reported_boot

MEBIBYTE = 1 << 20


@pytest.fixture
def checkpoint(tmp_path):
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    for number in (1, 2):
        with (folder / f"model-{number}.safetensors").open("wb") as file:
            file.write(os.urandom(MEBIBYTE))
            file.flush()
            os.fsync(file.fileno())
    return folder


def out_of_cache(path):
    with path.open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def test_cached_pages_counts_pages_that_were_read(checkpoint):
    path = checkpoint / "model-1.safetensors"
    path.read_bytes()
    pages = MEBIBYTE // os.sysconf("SC_PAGESIZE")
    assert cached_pages(path) == (pages, pages)
    out_of_cache(path)
    if cached_pages(path) == (pages, pages):
        pytest.skip("this file system lives in memory")
    assert cached_pages(path) == (0, pages), "looking reads nothing"
    assert cached_pages(path) == (0, pages)


def test_half_a_checkpoint_is_partly_warm(checkpoint):
    for path in checkpoint.glob("*.safetensors"):
        path.read_bytes()
    command = ["vllm", "serve", str(checkpoint), "--port", "1"]
    assert cached_before(command) == 1.0
    out_of_cache(checkpoint / "model-2.safetensors")
    found = cached_before(command)
    if found == 1.0:
        pytest.skip("this file system lives in memory")
    assert found == 0.5


def test_the_cached_share_is_unknown_without_mincore(checkpoint, monkeypatch, tmp_path):
    assert cached_before(["vllm", "serve", "org/model"]) is None
    assert cached_pages(tmp_path / "none") is None
    (tmp_path / "empty").touch()
    assert cached_pages(tmp_path / "empty") == (0, 0)
    monkeypatch.setattr(boot_time.os, "access", lambda *_: False)
    monkeypatch.setattr(boot_time.os, "geteuid", lambda: -1)
    assert cached_before(["vllm", "serve", str(checkpoint)]) is None, "Linux would say that all is there"


@pytest.mark.parametrize(
    ("cached", "kind"),
    [(0.0, "cold"), (0.05, "cold"), (0.5, "partly warm"), (0.95, "warm"), (None, "unknown")],
)
def test_cold_warm_and_partly_warm(cached, kind):
    boot = boot_time_of("http://h:1", 27.4, cached)
    assert boot.kind == kind
    assert f"27 s after its start ({kind}" in boot.sentence()


def test_only_the_server_that_was_started_has_a_time(monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    assert reported_boot("http://h:1") is None
    monkeypatch.setenv(VARIABLE, "")  # so that it is removed afterwards
    record_boot(boot_time_of("http://h:1", 27.4, 0.5))
    assert reported_boot("http://h:1/") == boot_time_of("http://h:1", 27.4, 0.5)
    assert reported_boot("http://h:2") is None
    for wrong in ("", "{}", "[]", "nonsense", '{"url": 1}'):
        monkeypatch.setenv(VARIABLE, wrong)
        assert reported_boot("http://h:1") is None
