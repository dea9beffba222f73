"""Opening a checkpoint with arbitrary bytes in its files returns a checkpoint or raises a HalfbyteError."""

import json
import shutil
import struct

import pytest
from attacks.damage import damaged_bytes, damaged_json, damaged_value
from hypothesis import given
from hypothesis import strategies as st
from pico import write_pico

from halfbyte.audit.run import audit
from halfbyte.checkpoint.folder import open_checkpoint
from halfbyte.checkpoint.headers import parse_header, read_header
from halfbyte.engine.pipeline import plan
from halfbyte.inspect import inspection
from halfbyte.recipe.load import load_recipe

INDEX = "model.safetensors.index.json"
ENTRY = {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}
HEADER = {"__metadata__": {"a": "b"}, "a.weight": ENTRY, "b": {**ENTRY, "data_offsets": [24, 48]}}
RECIPE = load_recipe("kimi-k2.6-mxfp4-wafer")


@pytest.fixture(scope="module")
def source(folder):
    return write_pico(folder / "source")


def opened(folder):
    """Use headers, index and config in every way before the first weight is read."""
    checkpoint = open_checkpoint(folder)
    inspection.inspect(checkpoint)
    plan(checkpoint, RECIPE).parts()


@given(header=damaged_value(HEADER), data=st.integers(0, 60))
def test_headers(survives, folder, header, data):
    raw = json.dumps(header).encode()
    path = folder / "a.safetensors"
    path.write_bytes(struct.pack("<Q", len(raw)) + raw + bytes(data))
    survives(read_header, path, path.name)


@given(raw=damaged_bytes(struct.pack("<Q", 200) + json.dumps(HEADER).encode().ljust(200) + bytes(48)))
def test_bytes_of_a_shard(survives, folder, raw):
    path = folder / "b.safetensors"
    path.write_bytes(raw)
    survives(read_header, path, path.name)


@given(raw=st.binary(max_size=64), nbytes=st.integers(0, 2**64))
def test_any_header(survives, raw, nbytes):
    survives(parse_header, raw, nbytes, "a.safetensors")


def with_file(folder, source, name, raw):
    """Copy a checkpoint with other bytes in one file; the shards are the same files."""
    copy = folder / "copy"
    shutil.rmtree(copy, ignore_errors=True)
    copy.mkdir()
    for path in source.iterdir():
        if path.is_file():
            (copy / path.name).hardlink_to(path)
    (copy / name).unlink()
    (copy / name).write_bytes(raw)
    return copy


@pytest.mark.parametrize("name", ["config.json", INDEX])
def test_config_and_index(survives, folder, source, name):
    valid = json.loads((source / name).read_text())

    @given(raw=damaged_json(valid))
    def fuzz(raw):
        copy = with_file(folder, source, name, raw)
        survives(opened, copy)
        survives(audit, copy)

    fuzz()
