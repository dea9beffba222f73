"""Checkpoints on the Hub by their headers, with a server that behaves like the Hub."""

import pytest
from range_hub import COMMIT, OTHER_COMMIT, REPO, Fault

from halfbyte.checkpoint.folder import open_checkpoint
from halfbyte.checkpoint.identity import identity
from halfbyte.checkpoint.remote import mirror
from halfbyte.checkpoint.remote.address import HubAddress
from halfbyte.checkpoint.remote.hub import open_hub
from halfbyte.checkpoint.remote.mirror import Cache, open_remote
from halfbyte.errors import CheckpointError, HalfbyteError, MachineError

ADDRESS = f"hf://{REPO}"


@pytest.fixture
def local(pico):
    return pico("spread")


@pytest.fixture
def hub(local, serve_hub):
    return serve_hub(local)


@pytest.fixture
def cache(tmp_path):
    return Cache(tmp_path / "cache", 10**9)


@pytest.mark.parametrize("address", [ADDRESS, f"{ADDRESS}@main", f"{ADDRESS}@{COMMIT}", "hf://rangeless/name"])
def test_a_hub_checkpoint_equals_the_local_folder(hub, local, cache, address):
    here, there = open_checkpoint(local), open_remote(address, cache)
    assert dict(there.tensors) == dict(here.tensors)
    assert (there.config, there.shards, there.index_nbytes) == (here.config, here.shards, here.index_nbytes)
    assert there.other_files() == here.other_files()
    for name in here.other_files():
        assert (there.root / name).read_bytes() == (local / name).read_bytes()
    assert identity(there) == identity(here)
    assert there.name == address


def test_a_folder_of_a_repository_is_a_checkpoint(pico, tmp_path, serve_hub, cache):
    local = pico("int4-k2.6")
    (tmp_path / "all/deep").mkdir(parents=True)
    local.rename(tmp_path / "all/deep/int4")
    serve_hub(tmp_path / "all")
    found = open_remote(f"{ADDRESS}@main/deep/int4", cache)
    assert dict(found.tensors) == dict(open_checkpoint(tmp_path / "all/deep/int4").tensors)


def test_only_headers_are_fetched_and_long_ones_in_two_requests(hub, local, cache, monkeypatch):
    monkeypatch.setattr(mirror, "FIRST_NBYTES", 64)
    found = open_remote(ADDRESS, cache)
    for shard in found.shards:
        first = min(info.begin for info in found.tensors.values() if info.shard == shard)
        assert hub.sent[shard] == first
        assert len([name for name, _, _ in hub.asked if name == shard]) == 2


def test_small_files_are_fetched_once(hub, cache):
    first = identity(open_remote(ADDRESS, cache))
    hub.forget()
    again = open_remote(ADDRESS, cache)
    assert identity(again) == first
    assert {name for name, _, _ in hub.asked} == set(again.shards)  # their headers


def test_a_damaged_local_small_file_is_fetched_again(hub, local, cache):
    root = open_remote(ADDRESS, cache).root
    (root / "LICENSE").write_text("Nobody may read this file")
    open_remote(ADDRESS, cache)
    assert (root / "LICENSE").read_bytes() == (local / "LICENSE").read_bytes()


def test_a_small_file_that_arrives_damaged_is_retried_once(hub, cache):
    hub.faults.append(Fault("LICENSE", "wrong", times=1))
    open_remote(ADDRESS, cache)
    hub.faults.append(Fault("chat_template", "wrong", times=9))
    (cache.folder / "hf--org--name" / COMMIT / "chat_template.jinja").unlink()
    with pytest.raises(CheckpointError, match=r"'chat_template.jinja' arrives damaged"):
        open_remote(ADDRESS, cache)


def test_a_name_that_leads_out_of_the_folder_is_refused(hub, cache, monkeypatch):
    files = open_hub(HubAddress(REPO))
    for name in ("../evil.json", "/evil.json", "a\\..\\b"):
        bad = {**files.entries, name: files.entries["config.json"]}
        monkeypatch.setattr(mirror, "open_hub", lambda *_, bad=bad: type(files)(files.address, files.pin, bad))
        with pytest.raises(CheckpointError, match="invalid file name"):
            open_remote(ADDRESS, cache)
    assert not (cache.folder / "evil.json").exists()


def test_the_pinned_commit_is_read_after_the_branch_moves(hub, pico, tmp_path, cache):
    hub.commits[OTHER_COMMIT] = pico("int4-k2.6", seed=1)
    before = open_hub(HubAddress(REPO))
    hub.branches["main"] = OTHER_COMMIT
    assert (before.pin, open_hub(HubAddress(REPO)).pin) == (COMMIT, OTHER_COMMIT)
    assert open_hub(HubAddress(REPO), COMMIT).pin == COMMIT
    raw = (hub.commits[COMMIT] / "config.json").read_bytes()
    assert b"".join(before.stream("config.json", 0, len(raw))) == raw


def refusal(address, cache):
    with pytest.raises(HalfbyteError) as caught:
        open_remote(address, cache)
    assert caught.value.fix
    return type(caught.value).__name__, caught.value.what


def test_hub_errors_are_reported_with_a_fix(hub, cache):
    assert refusal("hf://gated/name", cache) == (
        "CheckpointError",
        "the repository is gated and you do not have access",
    )
    assert refusal("hf://nobody/name", cache)[1] == "the repository does not exist or is private"
    assert refusal(f"{ADDRESS}@typo", cache)[1] == "the repository has no such revision"
    assert refusal("hf://broken/name", cache)[1] == "the Hub returned status 500"
    assert refusal("hf://empty/name", cache)[1] == "no safetensors at this address"
    assert refusal(f"{ADDRESS}@main/no/such/folder", cache)[1] == "config.json is missing"
    assert refusal("hf://a--b/c", cache)[0] == "UsageError"  # which only huggingface_hub knows to be no name


def test_a_listing_is_retried_after_transient_errors(hub, cache):
    hub.faults.append(Fault("/api/", "status", times=3, status=503))
    open_remote(ADDRESS, cache)
    assert hub.statuses[:4] == [503, 503, 503, 200]


def test_without_a_network(hub, cache, monkeypatch):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(MachineError, match="the Hub cannot be reached: ") as caught:
        open_remote(ADDRESS, cache)
    assert "pass its folder" in caught.value.fix
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(MachineError, match="the Hub cannot be reached: "):
        open_remote(ADDRESS, cache)


def test_a_shard_that_the_listing_does_not_have(hub, local, cache):
    (local / "model-00003-of-000005.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"shard 'model-00003-of-000005.safetensors' is missing"):
        open_remote(ADDRESS, cache)
