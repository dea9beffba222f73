"""quantize from an address: the same result as a local copy, with a cache smaller than the model."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from attacks.bounds import within
from calibratable import SHORT, small, texts
from calibratable import WAFER as CALIBRATED
from fetching import Watch, everything, weights_nbytes
from pico import write_pico
from range_hub import COMMIT, OTHER_COMMIT, REPO, Fault

from halfbyte.checkpoint.remote import shard_cache

RECIPE = "kimi-k2.6-mxfp4-wafer"
ADDRESS = f"hf://{REPO}"
SHARD = "model-{:05d}-of-000006.safetensors".format
TIGHT = "75kB"  # the largest shard has 71,456 bytes
MINI = Path(__file__).parents[2] / "models" / "kimi-mini"


@pytest.fixture
def source(tmp_path):
    return write_pico(tmp_path / "source")


@pytest.fixture
def hub(source, serve_hub):
    return serve_hub(source)


@pytest.fixture
def run(halfbyte, tmp_path):
    def call(source, out, *options, recipe=RECIPE):
        return halfbyte("quantize", source, tmp_path / out, "-r", recipe, *options)

    return call


def once_fetched(what, number, **more):
    """A fault that occurs when a shard is fetched, but not when its header is read."""
    return Fault(SHARD(number), what, skip=1, least_nbytes=1 << 15, **more)


@pytest.mark.parametrize(
    ("kind", "cache"), [("int4-k2.6", TIGHT), ("int4-k2.6", "1GB"), ("spread", "400kB"), ("bf16", "1GB")]
)
def test_the_same_files_as_from_a_local_copy(tmp_path, serve_hub, run, kind, cache):
    source = write_pico(tmp_path / "source", kind)
    hub = serve_hub(source)
    assert run(source, "local")[0] == 0
    with Watch(tmp_path / "cache") as watch:
        code, out, words = run(ADDRESS, "remote", "--cache", cache)
    assert code == 0, words
    assert everything(tmp_path / "remote") == everything(tmp_path / "local")
    assert 0 < watch.most <= {TIGHT: 75_000, "400kB": 400_000}.get(cache, 10**9)
    shards = {path.name: path.stat().st_size for path in source.glob("*.safetensors")}
    assert f"source    {len(shards)} of {len(shards)} shards match their known SHA-256" in out
    assert words.count("fetched model") == len(shards)  # each once
    assert weights_nbytes(tmp_path / "cache") == 0  # and gone
    origin = json.loads((tmp_path / "remote/halfbyte/fetched.json").read_text())
    assert (origin["address"], origin["version"]) == (ADDRESS, COMMIT)
    whole = [name for name, begin, end in hub.asked if (begin, end) == (0, shards.get(name)) and end > 1 << 14]
    assert len(whole) >= len(shards)


def test_a_long_address_has_a_folder_too(tmp_path, halfbyte):
    source = write_pico(tmp_path / ("a" * 150) / ("é" * 75) / "kimi")
    code, _, words = halfbyte("inspect", f"file://{source}", "--cache-dir", tmp_path / "held")
    assert code == 0, words
    (held,) = (tmp_path / "held").iterdir()
    assert held.name.startswith("file--")


def test_an_address_with_one_slash_is_told_of_the_other(halfbyte):
    code, _, words = halfbyte("inspect", f"hf:/{REPO}")
    assert code == 2
    assert "with two slashes: hf://org/name" in words


def test_a_full_disk_of_the_cache_is_not_said_of_the_output(tmp_path, hub, run, monkeypatch):
    usage, looked = shutil.disk_usage, []
    with tempfile.TemporaryDirectory(dir="/dev/shm") as other:
        if Path(other).stat().st_dev == tmp_path.stat().st_dev:
            pytest.skip("there is one disk only")

        def full(path):
            looked.append(path)
            found = usage(path)
            return found._replace(free=0) if str(path).startswith(other) else found

        monkeypatch.setattr(shutil, "disk_usage", full)
        code, _, words = run(ADDRESS, "remote", "--cache-dir", other)
    assert code == 3, words
    assert len(looked) == 2
    assert "the cache (--cache, --cache-dir) needs" in words


def test_what_killed_tasks_of_a_cluster_have_left_goes(tmp_path, hub, run):
    left = tmp_path / "cache/hf--org--name" / COMMIT / ".tasks/run-1-shard/.parts" / SHARD(2)
    left.parent.mkdir(parents=True)
    left.write_bytes(b"half")
    assert run(ADDRESS, "remote", "--cache", TIGHT)[0] == 0
    assert weights_nbytes(tmp_path / "cache") == 0


def test_kimi_mini_through_two_shards_of_cache(tmp_path, serve_hub, run):
    serve_hub(MINI)
    assert run(MINI, "local")[0] == 0
    with Watch(tmp_path / "cache") as watch:
        assert run(ADDRESS, "remote", "--cache", "7MB")[0] == 0
    assert everything(tmp_path / "remote") == everything(tmp_path / "local")
    assert 3_401_720 <= watch.most <= 7_000_000
    assert watch.looks > 20


def test_a_calibrating_run_reads_the_embedding_first_and_last(tmp_path, serve_hub, run, monkeypatch):
    monkeypatch.setattr(shard_cache, "_STALL_S", 1e9)  # the order is right, and needs none
    source = small(tmp_path / "source", layers=4)
    data = texts(tmp_path / "texts.jsonl") or tmp_path / "texts.jsonl"
    serve_hub(source)
    options = ("--data", f"news={data}", "--samples", "4", "--set", SHORT)
    code, _, words = run(source, "local", *options, recipe=CALIBRATED)
    assert code == 0, words
    whole = sum(path.stat().st_size for path in source.glob("*.safetensors"))
    with Watch(tmp_path / "cache") as watch, within(120):
        code, _, words = run(ADDRESS, "remote", *options, "--cache", "145kB", recipe=CALIBRATED)
    assert code == 0, words
    assert everything(tmp_path / "remote") == everything(tmp_path / "local")
    assert watch.most <= 145_000 < whole / 2
    assert words.count(f"fetched {SHARD(5).replace('000006', '000007')}") <= 2, words


def test_a_cache_that_is_too_small_is_said_before_anything_is_fetched(tmp_path, hub, run):
    code, out, words = run(ADDRESS, "out", "--cache", "50kB")
    assert (code, out) == (2, "")
    assert f"'{SHARD(1)}' is needed, 71.5 kB, but the cache limit is 50.0 kB" in words
    assert "use --cache 1MB or more" in words
    assert not (tmp_path / "out").exists()
    assert weights_nbytes(tmp_path / "cache") == 0
    write_pico(tmp_path / "spread", "spread")
    hub.commits[COMMIT] = tmp_path / "spread"
    code, _, words = run(f"{ADDRESS}@main", "out", "--cache", "200kB")
    assert code == 2
    assert "5 shards of the source are needed at once" in words


def test_a_cache_for_a_folder_is_refused(source, run):
    for option in (("--cache", "1GB"), ("--cache-dir", "x")):
        code, _, words = run(source, "out", *option)
        assert code == 2
        assert "a local source needs no cache" in words


@pytest.mark.parametrize(
    ("option", "said", "where"),
    [("--cache=0", "'0' is not a valid size", "where --cache"), ("--cache-dir=", "the path is empty", "--cache-dir")],
)
def test_what_is_no_cache_is_refused(run, option, said, where):
    code, _, words = run(ADDRESS, "out", option)
    assert code == 2
    assert said in words
    assert where in words


def test_a_full_disk_is_said_before_anything_is_fetched(tmp_path, hub, run, monkeypatch):
    import shutil
    from collections import namedtuple

    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(1, 1, 268_435_456 + 360_000))
    assert run(ADDRESS, "out", "--cache", "10kB")[0] == 2
    code, _, words = run(ADDRESS, "out", "--cache", "1GB")  # 0.34 MB of output, and 0.34 MB of shards at once
    assert code == 3
    assert "the output needs 269.1 MB" in words
    assert run(ADDRESS, "out", "--cache", TIGHT)[0] == 3
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(1, 1, 268_435_456 + 420_000))
    assert run(ADDRESS, "out", "--cache", TIGHT)[0] == 0


def test_a_damaged_shard_stops_the_run_and_what_is_finished_stays(tmp_path, source, hub, run):
    assert run(source, "local")[0] == 0
    hub.faults.append(once_fetched("wrong", 4, times=2))
    code, _, words = run(ADDRESS, "out", "--cache", TIGHT)
    assert code == 2, words
    assert f"shard '{SHARD(4)}' was damaged in two downloads: its SHA-256 is " in words
    out = tmp_path / "out"
    there = {path.name for path in out.glob("*.safetensors")}  # and perhaps later ones, while it came again
    assert {SHARD(1), SHARD(2), SHARD(3)} <= there <= {SHARD(number) for number in range(1, 7) if number != 4}
    assert not list(out.rglob("*.part"))
    hub.forget()
    assert run(ADDRESS, "out", "--cache", TIGHT)[0] == 0
    assert everything(out) == everything(tmp_path / "local")
    for number in (1, 2, 3):  # their layers are written: nothing but headers was asked for
        assert len([name for name, _, _ in hub.asked if name == SHARD(number)]) == 1


def test_what_is_damaged_on_purpose_needs_no_verify(tmp_path, hub, run):
    run(ADDRESS, "right", "--cache", "1GB")
    hub.faults.append(once_fetched("wrong", 4))
    code, out, words = run(ADDRESS, "out", "--no-verify")
    assert code == 0, words
    assert "6 shards, not verified (--no-verify)" in out
    assert "no known checksum for 6 of them" in words
    changed = [
        name for name, data in everything(tmp_path / "out").items() if everything(tmp_path / "right")[name] != data
    ]
    assert SHARD(4) in changed


def test_a_branch_that_moved_does_not_mix_two_versions(tmp_path, source, hub, run):
    assert run(source, "local")[0] == 0
    hub.faults += [once_fetched("wrong", number, times=2) for number in (4, 5, 6)]
    assert run(ADDRESS, "out", "--cache", TIGHT)[0] == 2
    hub.faults.clear()
    assert len(list((tmp_path / "out").glob("*.safetensors"))) == 3
    other = write_pico(tmp_path / "other", seed=1)
    for number in (1, 2, 3):  # a fine-tune of the last layers: finished shards have the same weights
        (other / SHARD(number)).write_bytes((source / SHARD(number)).read_bytes())
    hub.commits[OTHER_COMMIT] = other
    hub.branches["main"] = OTHER_COMMIT
    code, _, words = run(f"{ADDRESS}@{OTHER_COMMIT}", "out", "--cache", TIGHT)
    assert code == 2
    versions = f"version {COMMIT[:12]} of the source, which is now {OTHER_COMMIT[:12]}"
    assert f"this folder was started from {versions}" in words
    code, _, words = run(ADDRESS, "out", "--cache", TIGHT)
    assert code == 0, words
    assert everything(tmp_path / "out") == everything(tmp_path / "local")


def test_two_runs_do_not_share_a_cache(tmp_path, hub, run):
    from halfbyte.checkpoint.output_folder import locked_cache

    with locked_cache(tmp_path / "cache/hf--org--name" / COMMIT / ".parts"):
        code, _, words = run(ADDRESS, "out")
    assert code == 2
    assert "another run is writing into this folder" in words
    assert "--cache-dir" in words


def test_inspect_and_plan_read_headers_only(tmp_path, source, hub, halfbyte):
    code, local, _ = halfbyte("plan", source, "-r", RECIPE, "--no-measure", "--json")
    assert code == 0
    code, remote, words = halfbyte("plan", ADDRESS, "-r", RECIPE, "--json")
    assert code == 0, words
    assert json.loads(remote)["fingerprint"] == json.loads(local)["fingerprint"]
    assert halfbyte("inspect", ADDRESS, "--cache-dir", tmp_path / "elsewhere")[0] == 0
    assert (tmp_path / "elsewhere/hf--org--name" / COMMIT / "config.json").is_file()
    assert weights_nbytes(tmp_path) == weights_nbytes(source)


class Process:
    """The command in a separate process, to be killed."""

    def __init__(self, hub, tmp_path, *options):
        environment = {key: value for key, value in os.environ.items() if "proxy" not in key.lower()}
        environment |= {"HF_ENDPOINT": hub.url, "HALFBYTE_CACHE": str(tmp_path / "cache"), "NO_PROXY": "*"}
        command = [sys.executable, "-m", "halfbyte", "quantize", ADDRESS, str(tmp_path / "out"), "-r", RECIPE, *options]
        self.words = tmp_path / "words.txt"
        self._file = self.words.open("w")
        self.process = subprocess.Popen(command, env=environment, stdout=self._file, stderr=subprocess.STDOUT)

    def end(self, number=None):
        """Return the exit code, with or without a signal."""
        if number is not None:
            self.process.send_signal(number)
        code = self.process.wait(60)
        self._file.close()
        return code


def until(true, seconds=60):
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.005)


def test_sigkill_while_shards_come_loses_nothing(tmp_path, source, hub, run):
    assert run(source, "local")[0] == 0
    parts = tmp_path / "cache/hf--org--name" / COMMIT / ".parts"
    bound = 101_000  # the sixth cannot come before the fifth is written
    for number in (2, 4, 6):  # kill when half of it has arrived
        hub.faults[:] = [once_fetched("hang", number, after_nbytes=1 << 15)]
        process, part = Process(hub, tmp_path, "--cache", str(bound)), parts / SHARD(number)
        until(lambda part=part: part.is_file() and part.stat().st_size >= 1 << 15)
        until(lambda number=number: all((tmp_path / "out" / SHARD(done)).is_file() for done in range(1, number - 1)))
        assert process.end(signal.SIGKILL) == -signal.SIGKILL
        assert weights_nbytes(tmp_path / "cache") <= bound
        assert not (tmp_path / "out/config.json").exists()
    hub.faults.clear()
    hub.forget()
    process = Process(hub, tmp_path, "--cache", str(bound))
    assert process.end() == 0, process.words.read_text()
    assert everything(tmp_path / "out") == everything(tmp_path / "local")
    assert (SHARD(6), 1 << 15, 55_600) in hub.asked  # read on from where the kill cut it
    for number in range(1, 5):  # written before: nothing but the header was asked for
        assert len([name for name, _, _ in hub.asked if name == SHARD(number)]) == 1


def test_ctrl_c_does_not_wait_for_a_shard(tmp_path, source, hub, run):
    hub.faults.append(once_fetched("hang", 3, after_nbytes=1 << 15))
    process = Process(hub, tmp_path, "--cache", "1GB")
    until(hub.hanging.is_set)
    until((tmp_path / "out" / SHARD(2)).exists)
    here = tmp_path / "cache/hf--org--name" / COMMIT
    until(lambda: not (here / SHARD(1)).exists(), 20)  # written, so it is not needed again
    begin = time.monotonic()
    assert process.end(signal.SIGINT) == 130, process.words.read_text()
    assert time.monotonic() - begin < 10
    assert "shards are complete, and nothing needs cleaning up" in process.words.read_text()
    assert not list((tmp_path / "out").rglob("*.part"))
    assert run(source, "local")[0] == 0
    assert run(ADDRESS, "out", "--cache", "1GB")[0] == 0
    assert everything(tmp_path / "out") == everything(tmp_path / "local")
