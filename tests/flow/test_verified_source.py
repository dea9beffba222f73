"""quantize compares the source with its known hashes before writing, and only once."""

import json
import shutil

import pytest
from hub_layout import COMMIT, as_hub_cache, as_local_dir
from pico import write_pico

RECIPE = "kimi-k2.6-mxfp4-wafer"
SECOND = "model-00002-of-000006.safetensors"


@pytest.fixture
def source(tmp_path):
    return as_local_dir(write_pico(tmp_path / "source"))


@pytest.fixture
def run(halfbyte, tmp_path):
    def call(source, *options):
        return halfbyte("quantize", source, tmp_path / "out", "-r", RECIPE, *options)

    return call


def flip_a_bit(path):
    """Damage the last weight, which no header and no size reveals; return the original bytes."""
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    return data


def test_what_was_verified_is_said(run, source, tmp_path):
    code, out, words = run(source)
    assert code == 0, words
    assert "source    6 of 6 shards match their known SHA-256" in out
    assert words.count("verified model-0000") == 6
    stamps = json.loads((tmp_path / "out/halfbyte/verified.json").read_text())
    assert sorted(stamps) == sorted(path.name for path in source.glob("*.safetensors"))


def test_what_is_not_known_is_said(halfbyte, tmp_path):
    source = write_pico(tmp_path / "source")
    _, out, words = halfbyte("quantize", source, tmp_path / "a", "-r", RECIPE)
    assert "source    6 shards, no known SHA-256" in out
    assert "verified" not in words
    as_local_dir(source)
    (source / ".cache/huggingface/download" / f"{SECOND}.metadata").unlink()
    _, out, _ = halfbyte("quantize", source, tmp_path / "b", "-r", RECIPE)
    assert "source    5 of 6 shards match their known SHA-256; 1 have no known SHA-256" in out
    _, out, words = halfbyte("quantize", source, tmp_path / "c", "-r", RECIPE, "--no-verify", "--json")
    assert (json.loads(out)["verified_shards"], json.loads(out)["source_shards"]) == (None, 6)
    assert "verified" not in words
    assert not (tmp_path / "c/halfbyte/verified.json").exists()


def test_a_damaged_shard_stops_before_anything_is_written(run, source, tmp_path):
    before = flip_a_bit(source / SECOND)
    code, out, words = run(source)
    assert (code, out) == (2, "")
    assert f"✗ shard '{SECOND}' is damaged: its SHA-256 is " in words
    assert f"hf download ORGANIZATION/NAME {SECOND} --revision {COMMIT} --force-download --local-dir {source}" in words
    assert not (tmp_path / "out").exists()
    assert run(source, "--no-verify")[0] == 0
    shutil.rmtree(tmp_path / "out")
    (source / SECOND).write_bytes(before)
    assert run(source)[0] == 0


def test_the_cache_of_the_hub_is_a_source(halfbyte, tmp_path):
    plain = write_pico(tmp_path / "plain")
    snapshot = as_hub_cache(plain, tmp_path / "hub")
    code, out, words = halfbyte("quantize", snapshot, tmp_path / "a", "-r", RECIPE)
    assert code == 0, words
    assert "6 of 6 shards match their known SHA-256" in out
    assert halfbyte("quantize", plain, tmp_path / "b", "-r", RECIPE)[0] == 0
    assert halfbyte("diff", tmp_path / "a", tmp_path / "b")[0] == 0
    assert not [path for path in (tmp_path / "a").rglob("*") if path.is_symlink()]  # files, as in a plain folder


def test_going_on_reads_no_shard_twice(run, source, tmp_path):
    assert run(source)[0] == 0
    (tmp_path / "out" / "config.json").unlink()
    code, out, words = run(source)
    assert code == 0
    assert "6 of 6 shards match their known SHA-256" in out
    assert "verified" not in words
    flip_a_bit(source / SECOND)
    assert run(source)[0] == 2
    assert (tmp_path / "out/halfbyte/plan.json").exists()  # earlier files are kept


def test_only_what_is_read_is_verified(run, source):
    """With two layers, nothing of the third layer's shard is fetched."""
    flip_a_bit(source / "model-00003-of-000006.safetensors")
    code, out, words = run(source, "--layers", "2")
    assert code == 0, words
    assert "source    5 of 5 shards match their known SHA-256" in out
