"""provenance.json: the right hashes, each computed once, and no information about the machine's owner."""

import getpass
import hashlib
import json
import os
import socket
import time
from pathlib import Path

import pytest
from release_folder import RECIPE, skip_probes

from halfbyte.checkpoint import hashing
from halfbyte.checkpoint.identity import SUMS
from halfbyte.engine.pipeline import quantize
from halfbyte.errors import CheckpointError, UsageError
from halfbyte.publish.environment import code, environment
from halfbyte.publish.provenance import digest, write_provenance
from halfbyte.recipe.load import load_recipe


def sha256(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture
def read(monkeypatch):
    """Record every hashed file."""
    paths = []
    real = hashing.stamp
    monkeypatch.setattr(hashing, "stamp", lambda path, *rest: paths.append(path) or real(path, *rest))
    return paths


def write(out, source):
    return json.loads(write_provenance(out, source).read_text())


def test_every_hash_is_that_of_the_file(out, source):
    record = write(out, source)
    assert record["source"]["shards"] == {path.name: sha256(path) for path in sorted(source.glob("*.safetensors"))}
    for name, entry in record["outputs"].items():
        assert entry == {"nbytes": (out / name).stat().st_size, "sha256": sha256(out / name)}
    for name, found in record["evidence"].items():
        assert found == sha256(out / name)
    named = {*record["outputs"], *record["evidence"], "README.md"}
    unnamed = {"halfbyte/provenance.json", "halfbyte/hashed.json"}
    assert named | unnamed == {path.relative_to(out).as_posix() for path in out.rglob("*") if path.is_file()}


def test_the_record_says_what_was_made_of_what(out, source):
    record, plan = write(out, source), json.loads((out / "halfbyte/plan.json").read_text())
    assert record["format"] == 1
    assert record["plan"] == plan["fingerprint"]
    assert record["recipe"] == {"name": plan["recipe"]["name"], "sha256": plan["parts"]["recipe"]}
    assert record["source"]["name"] == source.name
    assert record["source"]["identity"] == plan["source"]
    assert (record["statistics"], record["data"]) == (None, None)
    assert record["digest"] == digest(record)
    assert list(record)[-1] == "digest"


def test_statistics_and_data_are_in_the_record(out, source):
    path = out / "halfbyte/plan.json"
    calibration = {"tokens_sha256": "a" * 64, "rows": [4, 8], "domains": {"code": 32}, "dtype": "bfloat16"}
    path.write_text(
        json.dumps({**json.loads(path.read_text()), "statistics_sha256": "b" * 64, "calibration": calibration})
    )
    record = write(out, source)
    assert record["statistics"] == "b" * 64
    assert record["data"] == {"tokens_sha256": "a" * 64, "rows": [4, 8], "domains": {"code": 32}}


def test_shards_that_quantize_wrote_are_not_hashed_again(made, tmp_path, monkeypatch, read):
    skip_probes(monkeypatch)
    quantize(made[0], tmp_path / "out", load_recipe(RECIPE))
    record = write(tmp_path / "out", made[0])
    assert not [path for path in read if path.parent == tmp_path / "out" and path.suffix == ".safetensors"]
    assert len(read) == len(set(read))
    assert record["hashes"]["an earlier hashing"] == len(list((tmp_path / "out").glob("*.safetensors")))
    assert record["source"]["hashes"] == {"computed": 6}


def test_a_second_record_hashes_nothing(out, source, read):
    first = write(out, source)
    read.clear()
    second = write(out, source)
    assert read == []
    assert second["outputs"] == first["outputs"]
    assert second["source"]["shards"] == first["source"]["shards"]
    assert set(second["source"]["hashes"]) == {"an earlier hashing"}


@pytest.mark.parametrize("before", [False, True], ids=["after a record", "after the audit"])
def test_a_shard_that_changed_is_hashed_again(out, source, read, before):
    if not before:
        write(out, source)
    shard = sorted(out.glob("*.safetensors"))[0]
    data = bytearray(shard.read_bytes())
    data[-1] ^= 1
    shard.write_bytes(data)
    os.utime(shard, ns=(time.time_ns(), time.time_ns()))
    read.clear()
    record = write(out, source)
    assert shard in read
    assert record["outputs"][shard.name]["sha256"] == hashlib.sha256(data).hexdigest()


def test_what_quantize_verified_is_taken_from_it(tmp_path, made, monkeypatch, read):
    skip_probes(monkeypatch)
    source, out = made[0], tmp_path / "out"
    sums = "".join(f"{sha256(path)}  {path.name}\n" for path in sorted(source.glob("*.safetensors")))
    (source / SUMS).write_text(sums)
    try:
        quantize(source, out, load_recipe(RECIPE))
    finally:
        (source / SUMS).unlink()
    assert write(out, source)["source"]["hashes"] == {"quantize, which verified them": 6}
    without = write(out, None)["source"]
    assert without["shards"] == {path.name: sha256(path) for path in sorted(source.glob("*.safetensors"))}


def test_without_a_source_nothing_is_invented(out):
    source = write(out, None)["source"]
    assert set(source["shards"].values()) == {None}
    assert source["hashes"] == {}


def test_traces_are_recorded_too(out, source):
    (out / "halfbyte/probe").mkdir()
    (out / "halfbyte/probe/probe.jsonl").write_text("{}\n")
    record = json.loads(write_provenance(out, source).read_text())
    assert record["evidence"]["halfbyte/probe/probe.jsonl"] == hashlib.sha256(b"{}\n").hexdigest()


def test_another_source_is_refused(out, source):
    shard = sorted(source.glob("*.safetensors"))[0]
    data = bytearray(shard.read_bytes())
    data[-1] ^= 1
    shard.write_bytes(data)
    with pytest.raises(UsageError, match="not made from this source"):
        write_provenance(out, source)
    assert not (out / "halfbyte/provenance.json").exists()


def test_an_unfinished_folder_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match="no finished checkpoint"):
        write_provenance(tmp_path, None)


def test_nothing_of_this_machine_is_in_it(out, source, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_" + "secretsecret" * 3)
    from halfbyte.publish import provenance

    monkeypatch.setattr(provenance, "environment", environment)  # the real one
    text = write_provenance(out, source).read_text()
    told = [str(out), str(source), str(out.parent), socket.gethostname(), os.environ["HF_TOKEN"], str(Path.cwd())]
    assert not [value for value in told if value in text]
    assert f"/{getpass.getuser()}" not in text
    record = json.loads(text)
    assert record["environment"]["packages"]["numpy"]
    assert record["environment"]["gpu"] is not None
    assert set(record["code"]) >= {"version", "commit"}


def test_code_names_the_commit_of_a_checkout():
    found = code()
    assert found["commit"] is None or len(found["commit"]) == 40


def test_a_name_and_commit_come_from_a_download(out, source):
    folder = source / ".cache/huggingface/download"
    folder.mkdir(parents=True)
    for path in source.glob("*.safetensors"):
        (folder / f"{path.name}.metadata").write_text(f"{'c' * 40}\n{'e' * 64}\n1\n")
    assert write(out, source)["source"]["revision"] == "c" * 40
    (folder / "model-00001-of-000006.safetensors.metadata").write_text(f"{'d' * 40}\n{'e' * 64}\n1\n")
    assert write(out, source)["source"]["revision"] is None  # two answers are none
