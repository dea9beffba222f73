"""One damaged file, journal or index at a time, each caught by exactly the responsible check."""

import pytest
from damage import EXPERT, LAYER_1, edit_json, edit_shard, failed, with_byte


def test_a_truncated_shard_is_bytes(outputs, copy):
    out = copy("mxfp4-wafer")
    data = (out / LAYER_1).read_bytes()
    (out / LAYER_1).write_bytes(data[:-1000])
    assert failed(outputs, out) == (["bytes"], ["bytes"])


def test_a_hash_that_is_not_the_journals_is_bytes(outputs, copy):
    out = copy("mxfp4-wafer")
    edit_shard(out, LAYER_1, with_byte(f"{EXPERT}.up_proj.weight", 0x31, at=9))
    assert failed(outputs, out, sample=0) == (["bytes"], ["bytes"])


@pytest.mark.parametrize("journal", ["", '{"shard": "torn'])
def test_a_shard_without_a_line_in_the_journal_is_bytes(outputs, copy, journal):
    out = copy("mxfp4-wafer")
    (out / "halfbyte" / "journal.jsonl").write_text(journal)
    assert failed(outputs, out) == (["bytes"], ["bytes"])


@pytest.mark.parametrize(
    "change",
    [
        lambda index: index["metadata"].update(total_size=1),
        lambda index: index["metadata"].pop("total_size"),
        lambda index: index["weight_map"].pop(f"{EXPERT}.up_proj.weight"),
        lambda index: index["weight_map"].update({f"{EXPERT}.up_proj.weight": "model-00001-of-000006.safetensors"}),
        lambda index: index["weight_map"].update({"ghost": "../ghost.safetensors"}),
        lambda index: index.update(weight_map=[]),
    ],
)
def test_an_index_that_does_not_tell_the_shards_is_index(outputs, copy, change):
    out = copy("mxfp4-wafer")
    edit_json(out / "model.safetensors.index.json", change)
    assert failed(outputs, out) == (["index"], ["index"])


def test_no_index_or_a_broken_one_is_index(outputs, copy):
    out = copy("mxfp4-wafer")
    (out / "model.safetensors.index.json").write_text("{")
    assert failed(outputs, out) == (["index"], ["index"])
    (out / "model.safetensors.index.json").unlink()
    assert failed(outputs, out) == (["index"], ["index"])


@pytest.mark.parametrize("name", ["model-00009-of-000006.safetensors.part", "halfbyte/audit.json.part"])
def test_a_part_left_over_is_index(outputs, copy, name):
    out = copy("mxfp4-wafer")
    (out / name).write_bytes(b"half")
    assert failed(outputs, out) == (["index"], ["index"])
