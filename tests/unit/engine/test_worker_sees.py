"""Checks of a worker before its work (source and run of the driver), and of the driver afterwards."""

import os
import socket
import sys
import time
from dataclasses import replace

import pytest
from pico import write_pico

from halfbyte import __version__
from halfbyte.checkpoint.atomic_write import ShardFile
from halfbyte.checkpoint.reader import shard_stamps
from halfbyte.engine.backends.ray import cluster, driver, worker
from halfbyte.engine.backends.ray.worker import TOKEN, claimed
from halfbyte.engine.pipeline import plan, quantize
from halfbyte.errors import MachineError, UsageError
from halfbyte.recipe.load import load_recipe

RECIPE = "kimi-k2.6-mxfp4-wafer"


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(worker, "SETTLE_SECONDS", 0.0)
    monkeypatch.setattr(driver, "SETTLE_SECONDS", 0.0)
    monkeypatch.setattr(worker, "_POLL_SECONDS", 0.05)
    monkeypatch.setattr(worker, "node_name", lambda: "node-7")


@pytest.fixture
def spec(tmp_path):
    """Specify a run on a small checkpoint, as the driver does."""
    made = plan(write_pico(tmp_path / "source"), load_recipe(RECIPE))
    (tmp_path / "out").mkdir()
    with claimed(tmp_path / "out") as token:
        yield driver._spec(made, tmp_path / "out", token, shard_stamps(made.checkpoint))


def test_the_same_plan_is_made_from_the_order(spec):
    assert worker.open_plan(spec).fingerprint() == spec.fingerprint


def test_a_source_that_the_node_cannot_see(spec):
    with pytest.raises(MachineError, match="node node-7 cannot see the source") as caught:
        worker.open_plan(replace(spec, source="/nowhere"))
    assert caught.value.where == "/nowhere"


def test_another_source_in_its_place(spec, tmp_path):
    write_pico(tmp_path / "source", seed=1)
    with pytest.raises(MachineError, match="node node-7 sees a different source than the driver"):
        worker.open_plan(spec)
    with pytest.raises(MachineError, match="node node-7 sees a different source than the driver"):
        worker.open_plan(
            replace(spec, seen=shard_stamps(plan(tmp_path / "source", load_recipe(RECIPE)).checkpoint), layers=2)
        )


def test_another_version(spec):
    with pytest.raises(MachineError, match=f"node node-7 has halfbyte {__version__}, the driver 0.0.1"):
        worker.open_plan(replace(spec, version="0.0.1"))


def test_an_output_folder_that_the_node_cannot_see(spec):
    answer = worker.write_shard(replace(spec, out="/nowhere"), "model-00001-of-000006.safetensors", 1, 1)
    assert answer.node == "node-7"
    assert "node node-7 does not see this run in the output folder" in str(answer.error)


def test_what_is_wrong_is_an_answer_and_a_bug_is_none():
    def fail(error):
        raise error

    for error in (MachineError("no room"), OSError(5, "bad disk"), MemoryError()):
        assert worker.as_result(lambda error=error: fail(error)) == worker.TaskResult("node-7", error=error)
    with pytest.raises(ZeroDivisionError):
        worker.as_result(lambda: fail(ZeroDivisionError()))


def test_a_run_that_another_has_followed_is_not_worked_for(spec, tmp_path):
    with claimed(tmp_path / "out"):
        answer = worker.write_shard(spec, "model-00001-of-000006.safetensors", 1, 1)
        assert "does not see this run" in str(answer.error)
        assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [TOKEN]


def test_a_worker_of_a_run_that_is_over_ends_itself(spec, tmp_path):
    pid = os.fork()
    if not pid:
        with worker.exit_when_stale(spec):
            time.sleep(30)
        os._exit(0)
    time.sleep(0.3)
    assert os.waitpid(pid, os.WNOHANG) == (0, 0)  # while the run goes on, so does the worker
    (tmp_path / "out" / TOKEN).write_text("of another run")
    begin = time.monotonic()
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 1
    assert time.monotonic() - begin < 10


def test_the_token_goes_with_the_run(tmp_path):
    with claimed(tmp_path) as first:
        assert (tmp_path / TOKEN).read_text() == first
    assert not list(tmp_path.iterdir())
    with claimed(tmp_path) as second:
        assert second != first


def test_a_shard_that_the_driver_cannot_see(tmp_path):
    answer = worker.TaskResult("node-7", entry={})
    with pytest.raises(MachineError, match=r"node node-7 wrote a\.safetensors, but this machine does not see it"):
        driver._check_visible(tmp_path / "a.safetensors", 3, answer)
    (tmp_path / "a.safetensors").write_bytes(b"12")
    with pytest.raises(MachineError, match="does not see"):
        driver._check_visible(tmp_path / "a.safetensors", 3, answer)
    (tmp_path / "a.safetensors").write_bytes(b"123")
    driver._check_visible(tmp_path / "a.safetensors", 3, answer)


def test_two_attempts_at_a_shard_do_not_meet(tmp_path):
    first, second = (ShardFile(tmp_path / "a", b"head", 8, mark=f".run-{number}") for number in (1, 2))
    first.write(memoryview(b"1234"), 4)
    second.write(memoryview(b"5678"), 4)
    second.finish()
    assert (tmp_path / "a").read_bytes() == b"head5678"
    first.abandon()
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


# --- finding a cluster ---


def test_without_ray_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MachineError, match="Ray, which is not installed") as caught, cluster.connected("auto"):
        pass
    assert "pip install 'ray>=2.50', on every node" in caught.value.fix


class NoCluster:
    def __init__(self, error):
        self.error, self.asked = error, {}

    def is_initialized(self):
        return False

    def init(self, **asked):
        self.asked = {**asked, "usage": os.environ.get("RAY_USAGE_STATS_ENABLED")}
        raise self.error


@pytest.mark.parametrize(
    ("address", "error", "words"),
    [
        ("auto", ConnectionError("Could not find any running Ray instance."), "cannot connect to Ray: no response"),
        ("head:6379", RuntimeError("Version mismatch: 2.50 here.\nmore"), "Version mismatch: 2.50 here"),
        ("local", OSError("no room"), "cannot start Ray: no room"),
    ],
)
def test_no_cluster_is_a_sentence(monkeypatch, address, error, words):
    ray = NoCluster(error)
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.delenv("RAY_USAGE_STATS_ENABLED", raising=False)
    with pytest.raises(MachineError, match=words), cluster.connected(address):
        pass
    assert (ray.asked["address"], ray.asked["usage"]) == (address, "0")
    assert "RAY_USAGE_STATS_ENABLED" not in os.environ


def test_a_client_outside_the_cluster_is_refused():
    with pytest.raises(UsageError, match="Ray Client is not supported"):
        cluster.check_address("ray://head:10001")


def test_an_address_where_nobody_answers_is_said_at_once_and_before_anything_is_written(tmp_path, monkeypatch):
    listening = socket.create_server(("127.0.0.1", 0))
    address = f"127.0.0.1:{listening.getsockname()[1]}"
    cluster.check_address(address)
    listening.close()
    source = write_pico(tmp_path / "source")
    begin = time.monotonic()
    with pytest.raises(MachineError, match="cannot connect to Ray: no response"):
        quantize(source, tmp_path / "out", load_recipe(RECIPE), ray=address)
    monkeypatch.setenv("RAY_ADDRESS", address)
    with pytest.raises(MachineError, match="cannot connect to Ray: no response"):
        quantize(source, tmp_path / "out", load_recipe(RECIPE), ray="auto")
    assert time.monotonic() - begin < 10
    assert not (tmp_path / "out").exists()


def test_what_is_no_address(monkeypatch):
    with pytest.raises(UsageError, match="'cluster' is not a valid cluster address"):
        cluster.check_address("cluster")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    cluster.check_address("auto")
    cluster.check_address("local")
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MachineError, match="not installed"):
        cluster.check_address("local")
