"""quantize --push: shards are uploaded during the run and may be evicted; a resumed run accounts for them."""

import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
import time

import pytest
from fake_hub import TOKEN, FakeHub, Fault
from huggingface_hub import constants
from huggingface_hub.utils import close_session
from pico import write_pico

RECIPE = "kimi-k2.6-mxfp4-wafer"
REPO = "org/made"
SHARD = "model-{:05d}-of-000006.safetensors".format


@pytest.fixture
def hub(monkeypatch):
    fake = FakeHub()
    monkeypatch.setattr(constants, "ENDPOINT", fake.url)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    real = time.sleep
    hangs = 600  # of the fake itself
    monkeypatch.setattr(time, "sleep", lambda seconds: real(seconds if seconds == hangs else min(seconds, 0.02)))
    yield fake
    fake.close()
    close_session()


@pytest.fixture
def source(tmp_path):
    return write_pico(tmp_path / "source")


@pytest.fixture
def run(halfbyte, source, tmp_path):
    def call(out, *options):
        return halfbyte("quantize", source, tmp_path / out, "-r", RECIPE, *options)

    return call


def sums(folder):
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.glob("*.safetensors"))}


def pushed(hub):
    return {
        name: hashlib.sha256(data).hexdigest() for name, data in hub.files(REPO).items() if name.startswith("model-")
    }


def test_what_is_made_is_on_the_hub_and_config_comes_last(hub, run, tmp_path):
    code, _, words = run("out", "--push", REPO)
    assert code == 0, words
    assert run("local")[0] == 0
    out = tmp_path / "out"
    assert pushed(hub) == sums(out) == sums(tmp_path / "local")
    files, repo = hub.files(REPO), hub.repos[f"models/{REPO}"]
    assert repo.private
    for name in ("config.json", "model.safetensors.index.json", "tokenizer_config.json", "figures/score.svg"):
        assert files[name] == (out / name).read_bytes()
    assert not [name for name in files if name.startswith("halfbyte/")]  # evidence has this machine's paths in it
    assert [names for _, _, names in repo.commits][:6] == [[SHARD(number)] for number in by_commit(repo)]
    assert "config.json" in repo.commits[-1][2]


def by_commit(repo):
    return [int(names[0][6:11]) for _, _, names in repo.commits[:6]]


def test_shards_leave_the_disk_and_a_second_run_has_nothing_to_do(hub, run, tmp_path):
    assert run("local")[0] == 0
    code, _, words = run("out", "--push", REPO, "--evict")
    assert code == 0, words
    assert sums(tmp_path / "out") == {}
    assert pushed(hub) == sums(tmp_path / "local")
    received = len(hub.received)
    code, out, _ = run("out", "--push", REPO, "--evict", "--json")
    assert code == 0
    assert json.loads(out)["resumed"] == 6
    assert len(hub.received) == received
    assert sums(tmp_path / "out") == {}


def test_a_shard_goes_only_when_the_hub_has_its_hash(hub, run, tmp_path, monkeypatch):
    from halfbyte.publish.hub.hub import Upload

    real = Upload.there
    hide = {SHARD(3)}
    monkeypatch.setattr(Upload, "there", lambda self: {k: v for k, v in real(self).items() if k not in hide})
    code, _, words = run("out", "--push", REPO, "--evict")
    assert code == 3, words
    assert f"'{SHARD(3)}' on the Hub does not match the local file" in words
    assert (tmp_path / "out" / SHARD(3)).is_file()
    hide.clear()
    assert run("out", "--push", REPO, "--evict")[0] == 0
    assert run("local")[0] == 0
    assert pushed(hub) == sums(tmp_path / "local")


def test_a_hub_that_refuses_ends_the_run_and_it_goes_on_later(hub, run, tmp_path):
    hub.faults.append(Fault("POST", "/commit/", "status", times=99, status=403))
    code, _, words = run("out", "--push", REPO, "--evict")
    assert code == 3, words
    assert "has no write access to the repository" in words
    made = sums(tmp_path / "out")
    assert made  # final, and kept: the Hub has none of them
    hub.faults.clear()
    received = list(hub.received)
    assert run("out", "--push", REPO)[0] == 0  # without --evict they stay
    assert run("local")[0] == 0
    assert pushed(hub) == sums(tmp_path / "out") == sums(tmp_path / "local")
    assert hub.received[: len(received)] == received
    assert len(set(hub.received)) == len(hub.received)  # nothing was uploaded twice


def test_errors_that_pass_are_waited_for(hub, run):
    hub.faults += [Fault("PUT", "/store/", "drop", times=2), Fault("POST", "/commit/", "lose")]
    code, _, words = run("out", "--push", REPO, "--evict")
    assert code == 0, words
    assert len(pushed(hub)) == 6


def test_an_evicted_shard_that_the_hub_has_lost_is_made_again(hub, run, tmp_path):
    assert run("out", "--push", REPO, "--evict")[0] == 0
    before = pushed(hub)
    del hub.files(REPO)[SHARD(2)]
    code, out, _ = run("out", "--push", REPO, "--evict", "--json")
    assert code == 0
    assert json.loads(out)["resumed"] == 5
    assert pushed(hub) == before


def test_without_a_push_evicted_shards_are_made_again(hub, run, tmp_path):
    assert run("out", "--push", REPO, "--evict")[0] == 0
    assert run("out")[0] == 0
    assert sums(tmp_path / "out") == pushed(hub)


def test_few_shards_wait_on_the_disk(hub, run, tmp_path, monkeypatch):
    from halfbyte.publish.hub import push

    monkeypatch.setattr(push, "BACKLOG", 1)
    waiting = []
    real = push.Push._send

    def slow(self, upload, shard):
        time.sleep(0.02)
        waiting.append(len(list((tmp_path / "out").glob("*.safetensors"))))
        real(self, upload, shard)

    monkeypatch.setattr(push.Push, "_send", slow)
    code, _, words = run("out", "--push", REPO, "--evict", "--threads", "1")
    assert code == 0, words
    assert max(waiting) <= 3  # one that is sent, one that waits, and the one whose maker waits


def test_less_room_is_asked_for_if_shards_leave(hub, run, tmp_path, monkeypatch):
    import shutil
    from collections import namedtuple

    from halfbyte.publish.hub import push

    monkeypatch.setattr(push, "BACKLOG", 0)
    monkeypatch.setattr(push, "_OPEN", 2)
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(1, 1, 268_435_456 + 200_000))
    assert run("out", "--push", REPO)[0] == 3
    assert run("out", "--push", REPO, "--evict")[0] == 0


def test_ctrl_c_does_not_wait_for_the_hub(hub, source, run, tmp_path):
    environment = {key: value for key, value in os.environ.items() if "proxy" not in key.lower()}
    environment |= {"HF_ENDPOINT": hub.url, "HF_TOKEN": TOKEN, "HF_HUB_DISABLE_XET": "1"}
    hub.faults.append(Fault("PUT", "/store/", "hang", times=9))
    command = ["quantize", str(source), str(tmp_path / "out"), "-r", RECIPE, "--push", REPO, "--evict"]
    process = subprocess.Popen([sys.executable, "-m", "halfbyte", *command], env=environment)
    end = time.monotonic() + 60
    while len(list((tmp_path / "out").glob("*.safetensors"))) < 6 and time.monotonic() < end:
        process.poll()
        threading.Event().wait(0.05)
    process.send_signal(signal.SIGINT)  # one is being sent, four wait, and the maker of the sixth waits too
    assert process.wait(15) == 130
    hub.faults.clear()
    code, out, _ = run("out", "--push", REPO, "--evict", "--json")
    assert (code, json.loads(out)["resumed"]) == (0, 6)
    assert len(pushed(hub)) == 6


@pytest.mark.parametrize(
    ("options", "said"),
    [(("--evict",), "--evict requires --push"), (("--push", "kimi"), "'kimi' is not a valid repository name")],
)
def test_what_cannot_be_asked_for(run, tmp_path, options, said):
    code, _, words = run("out", *options)
    assert code == 2
    assert said in words
    assert not (tmp_path / "out").exists()


def test_a_public_repository_and_nobody_logged_in_are_refused(hub, run, tmp_path, monkeypatch):
    import huggingface_hub
    from fake_hub import Repo

    hub.repos[f"models/{REPO}"] = Repo(private=False)
    code, _, words = run("out", "--push", REPO)
    assert code == 2
    assert "the repository is already public" in words
    monkeypatch.setattr(huggingface_hub, "get_token", lambda: None)
    code, _, words = run("out", "--push", REPO)
    assert code == 3
    assert "not logged in to the Hub" in words
    assert not (tmp_path / "out").exists()
