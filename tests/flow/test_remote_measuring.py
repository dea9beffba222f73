"""calibrate and prune from an address: the same result as a local copy, with a cache smaller than the model."""

import json
import re

import pytest
from attacks.bounds import within
from calibratable import SHORT, WAFER, small, texts
from fetching import Watch, everything, weights_nbytes
from range_hub import COMMIT, OTHER_COMMIT, REPO, Fault

from halfbyte.checkpoint.remote import shard_cache

ADDRESS = f"hf://{REPO}"
LAYERS = 4
TIGHT = 145_000  # two layers; the largest have 71 kB each
SHARD = "model-{:05d}-of-000007.safetensors".format


@pytest.fixture
def source(tmp_path):
    texts(tmp_path / "texts.jsonl")
    return small(tmp_path / "source", layers=LAYERS)


@pytest.fixture
def hub(source, serve_hub, monkeypatch):
    monkeypatch.setattr(shard_cache, "_STALL_S", 1e9)  # the order is right, and needs none
    return serve_hub(source)


@pytest.fixture
def calibrate(halfbyte, tmp_path):
    data = ("--data", f"news={tmp_path / 'texts.jsonl'}", "--samples", "4", "--set", SHORT)

    def call(source, folder, *options):
        with within(120):
            return halfbyte("calibrate", source, "-r", WAFER, "-o", tmp_path / folder, *data, *options)

    return call


def statistics(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "fetched.json"}


def once_fetched(what, number, **more):
    return Fault(SHARD(number), what, skip=1, least_nbytes=1 << 15, **more)


def test_statistics_are_those_of_a_local_copy(tmp_path, source, hub, calibrate):
    assert calibrate(source, "local")[0] == 0
    with Watch(tmp_path / "cache") as watch:
        code, out, words = calibrate(ADDRESS, "remote", "--cache", str(TIGHT))
    assert code == 0, words
    assert statistics(tmp_path / "remote") == statistics(tmp_path / "local")
    assert 0 < watch.most <= TIGHT < weights_nbytes(source) / 2
    assert weights_nbytes(tmp_path / "cache") == 0
    fetched = re.findall(r"fetched (model-\S+)", words)
    assert fetched == [*dict.fromkeys(fetched)], "each once"
    assert len(fetched) == LAYERS + 1  # and the embedding, but not the head
    assert f"halfbyte quantize {ADDRESS} OUT" in words + out


def test_what_is_damaged_on_purpose_can_be_measured(tmp_path, hub, calibrate):
    hub.faults.append(once_fetched("wrong", 3, times=2))
    code, _, words = calibrate(ADDRESS, "remote", "--layers", "3")
    assert code == 2
    assert "to use it anyway: --no-verify" in words
    hub.faults.append(once_fetched("wrong", 3, times=1))
    code, out, words = calibrate(ADDRESS, "remote", "--layers", "3", "--no-verify")
    assert code == 0, words
    assert f"halfbyte quantize {ADDRESS} OUT -r {WAFER} --layers 3 --stats" in words + out


def test_a_calibration_goes_on_with_the_version_that_it_began_with(tmp_path, source, hub, calibrate):
    assert calibrate(source, "local")[0] == 0
    hub.faults.append(once_fetched("wrong", 3, times=2))
    code, _, words = calibrate(ADDRESS, "remote", "--cache", str(TIGHT))
    assert code == 2, words
    assert f"shard '{SHARD(3)}' was damaged in two downloads" in words
    assert list((tmp_path / "remote").glob("layer-*.safetensors"))
    hub.commits[OTHER_COMMIT] = small(tmp_path / "other", layers=LAYERS, seed=1)
    hub.branches["main"] = OTHER_COMMIT
    code, _, words = calibrate(f"{ADDRESS}@{OTHER_COMMIT}", "remote", "--cache", str(TIGHT))
    assert code == 2
    hub.forget()
    code, _, words = calibrate(ADDRESS, "remote", "--cache", str(TIGHT))
    assert code == 0, words
    assert statistics(tmp_path / "remote") == statistics(tmp_path / "local")
    origin = json.loads((tmp_path / "remote/fetched.json").read_text())
    assert (origin["address"], origin["version"]) == (ADDRESS, COMMIT)
    assert "fetched " + SHARD(1) not in words, "its layer was measured"


def test_finished_statistics_fetch_nothing(tmp_path, hub, calibrate):
    assert calibrate(ADDRESS, "stats")[0] == 0
    before = statistics(tmp_path / "stats")
    code, _, words = calibrate(ADDRESS, "stats")
    assert code == 0, words
    assert "fetched" not in words
    assert statistics(tmp_path / "stats") == before


@pytest.fixture
def prune(halfbyte, tmp_path):
    def call(source, out, *options):
        with within(120):
            return halfbyte("prune", source, tmp_path / out, "--no-loops", *options)

    return call


def how(name, tmp_path):
    return {
        "statistics": ("--keep", "2", "--stats", tmp_path / "stats"),
        "data": ("--keep", "2", "--data", f"news={tmp_path / 'texts.jsonl'}", "--samples", "4", "--length", "24"),
        "plan": ("--plan", tmp_path / "plan.json"),
    }[name]


@pytest.mark.parametrize("name", ["statistics", "data", "plan"])
def test_a_pruned_checkpoint_is_that_of_a_local_copy(tmp_path, source, hub, halfbyte, calibrate, prune, name):
    assert calibrate(source, "stats")[0] == 0
    if name == "plan":
        plan_only = ("--keep", "2", "--stats", tmp_path / "stats", "-o")
        assert halfbyte("prune", ADDRESS, *plan_only, tmp_path / "plan.json")[0] == 0
        assert halfbyte("prune", source, *plan_only, tmp_path / "local.json")[0] == 0
        assert (tmp_path / "plan.json").read_bytes() == (tmp_path / "local.json").read_bytes()
        assert weights_nbytes(tmp_path / "cache") == 0, "a plan reads no weights"
    code, _, words = prune(source, "local", *how(name, tmp_path))
    assert code == 0, words
    with Watch(tmp_path / "cache") as watch:
        code, _, words = prune(ADDRESS, "remote", *how(name, tmp_path), "--cache", str(TIGHT))
    assert code == 0, words
    assert everything(tmp_path / "remote") == everything(tmp_path / "local")
    assert 0 < watch.most <= TIGHT
    assert weights_nbytes(tmp_path / "cache") == 0
    assert f"halfbyte audit {tmp_path}/remote\n" in words, "what is elsewhere is no folder to audit against"


def test_only_the_pruned_one_is_asked_where_its_source_is_elsewhere(tmp_path, hub, halfbyte, calibrate):
    assert calibrate(ADDRESS, "stats")[0] == 0
    code, _, words = halfbyte("prune", ADDRESS, tmp_path / "out", *how("statistics", tmp_path), "--loops", "1")
    assert code in (0, 1), words
    assert "generating texts with the checkpoint" in words
    assert json.loads((tmp_path / "out/halfbyte/loops.json").read_text())["source"] is None


@pytest.mark.parametrize("command", ["calibrate", "prune"])
def test_a_cache_for_a_folder_is_refused(tmp_path, source, halfbyte, command):
    options = {
        "calibrate": ("-r", WAFER, "--data", f"news={tmp_path / 'texts.jsonl'}", "-o", tmp_path / "stats"),
        "prune": (tmp_path / "out", "--keep", "2", "--data", f"news={tmp_path / 'texts.jsonl'}"),
    }[command]
    code, _, words = halfbyte(command, source, *options, "--cache", "1GB")
    assert code == 2
    assert "a local source needs no cache" in words
    assert not (tmp_path / "out").exists()
    assert not (tmp_path / "stats").exists()
