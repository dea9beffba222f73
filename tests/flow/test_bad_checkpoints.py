"""Bad checkpoints given to `quantize`: one error with what, where and fix; nothing is written.

These tests run the real commands. The parsers' own errors are tested in `unit/checkpoint` and `unit/families`.
"""

import json
import shutil
import struct

import pytest
from attacks.headers import edit_header
from refusals import INDEX, refused

FIRST, SECOND, THIRD = (f"model-0000{i}-of-000006.safetensors" for i in (1, 2, 3))
AT = "language_model.model.layers"
EXPERT = f"{AT}.1.mlp.experts.2.up_proj"


# --- shards and their headers ---


def edit_tensor(path, name, **changes):
    edit_header(path, lambda header: {**header, name: {**header[name], **changes}})


def missing_shard(folder):
    (folder / SECOND).unlink()


def truncated_shard(folder):
    data = (folder / SECOND).read_bytes()
    (folder / SECOND).write_bytes(data[:-1000])


def shard_of_a_few_bytes(folder):
    (folder / SECOND).write_bytes(b"\x08\0\0")


def header_beyond_the_file(folder):
    data = (folder / SECOND).read_bytes()
    (folder / SECOND).write_bytes(struct.pack("<Q", 10**15) + data[8:])


def shard_is_no_safetensors(folder):
    (folder / SECOND).write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n")


def overlapping_offsets(folder):
    def change(header):
        begin, end = header[f"{EXPERT}.weight_packed"]["data_offsets"]
        header[f"{EXPERT}.weight_packed"]["data_offsets"] = [begin - 8, end - 8]
        return header

    edit_header(folder / SECOND, change)


def offsets_out_of_range(folder):
    def change(header):
        last = max((n for n in header if n != "__metadata__"), key=lambda name: header[name]["data_offsets"])
        begin, end = header[last]["data_offsets"]
        header[last]["data_offsets"] = [begin + 2**40, end + 2**40]
        return header

    edit_header(folder / SECOND, change)


def tensor_twice_in_a_header(folder):
    def change(header):
        entry = json.dumps(header[f"{EXPERT}.weight_packed"])
        return json.dumps(header)[:-1].encode() + f', "{EXPERT}.weight_packed": {entry}}}'.encode()

    edit_header(folder / SECOND, change)


def tensor_in_two_shards(folder):
    shutil.copy(folder / SECOND, folder / "model-copy.safetensors")
    edit_index(folder, another="model-copy.safetensors")


def unknown_dtype(folder):
    edit_tensor(folder / SECOND, f"{EXPERT}.weight_scale", dtype="F6_E3M2")


def shape_and_bytes_disagree(folder):
    edit_tensor(folder / SECOND, f"{EXPERT}.weight_scale", shape=[32, 3])


# --- the index, and paths that lead away ---


def edit_index(folder, **changes):
    index = json.loads((folder / INDEX).read_text())
    index["weight_map"].update(changes)
    (folder / INDEX).write_text(json.dumps(index))


def rename_in_index(folder, new):
    text = (folder / INDEX).read_text().replace(f'"{SECOND}"', json.dumps(str(new)))
    (folder / INDEX).write_text(text)


def index_points_outside(folder):
    shutil.move(folder / SECOND, folder.parent / "outside.safetensors")
    rename_in_index(folder, "../outside.safetensors")


def index_with_an_absolute_path(folder):
    shutil.move(folder / SECOND, folder.parent / "outside.safetensors")
    rename_in_index(folder, folder.parent / "outside.safetensors")


def shard_is_a_link_that_leaves(folder):
    shutil.move(folder / SECOND, folder.parent / "outside.safetensors")
    (folder / SECOND).symlink_to(folder.parent / "outside.safetensors")


def tokenizer_is_a_link_that_leaves(folder):
    (folder.parent / "secret").write_text("a private key")
    (folder / "tokenizer.json").symlink_to("../secret")


def folder_is_a_link_that_leaves(folder):
    (folder.parent / "outside").mkdir()
    (folder / "more").symlink_to("../outside")


def tokenizer_is_a_link_to_nothing(folder):
    (folder / "tokenizer.json").symlink_to("gone.json")


def pickles_only(folder):
    for path in folder.glob("*.safetensors*"):
        path.unlink()
    (folder / "pytorch_model.bin").write_bytes(b"\x80\x04cos\nsystem\n.")


# --- tensors that are missing, and a config of another model ---


def without(folder, drop):
    """Rewrite the shards and the index without some tensors."""
    from safetensors.torch import load_file, save_file

    index = json.loads((folder / INDEX).read_text())
    for shard in sorted({shard for name, shard in index["weight_map"].items() if drop(name)}):
        kept = {name: tensor for name, tensor in load_file(folder / shard).items() if not drop(name)}
        save_file(kept, folder / shard)
    index["weight_map"] = {name: shard for name, shard in index["weight_map"].items() if not drop(name)}
    (folder / INDEX).write_text(json.dumps(index))


def missing_weight_scale(folder):
    without(folder, lambda name: name == f"{EXPERT}.weight_scale")


def expert_missing_in_one_layer(folder):
    without(folder, lambda name: name.startswith(f"{AT}.2.mlp.experts.3."))


def edit_config(folder, **changes):
    config = json.loads((folder / "config.json").read_text())
    for key, value in changes.items():
        (config["text_config"] if key in config["text_config"] else config)[key] = value
    (folder / "config.json").write_text(json.dumps(config))


def config_with_more_experts(folder):
    edit_config(folder, n_routed_experts=384)


def config_with_more_layers(folder):
    edit_config(folder, num_hidden_layers=61)


def config_with_another_width(folder):
    edit_config(folder, moe_intermediate_size=2048)


def config_of_another_format(folder):
    edit_config(folder, quantization_config={"quant_method": "modelopt", "quant_algo": "NVFP4"})


def config_of_no_format(folder):
    config = json.loads((folder / "config.json").read_text())
    del config["text_config"]["quantization_config"]
    (folder / "config.json").write_text(json.dumps(config))


def unknown_model_type(folder):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "model_type": "llama"}))


def no_config(folder):
    (folder / "config.json").unlink()


# How the folder is broken: then the sentence, the place and the remedy, each of them in part.
CASES = {
    missing_shard: (f"shard '{SECOND}' is missing", "source", "download it"),
    truncated_shard: ("the tensors end at byte ", SECOND, "download this shard again: it is truncated"),
    shard_of_a_few_bytes: ("the file has 3 bytes, too few for a header", SECOND, "download this shard again"),
    header_beyond_the_file: ("the header should have 1,000,000,000,000,000 bytes, but the file has ", SECOND, "again"),
    shard_is_no_safetensors: ("the header should have ", SECOND, "it is truncated or not safetensors"),
    overlapping_offsets: ("the tensor overlaps the tensor before it", f"{SECOND}: {AT}.1.", "the file is damaged"),
    offsets_out_of_range: ("the tensor leaves a gap before it", f"{SECOND}: {AT}.1.", "the file is damaged"),
    tensor_twice_in_a_header: ("duplicate header entry", f"{SECOND}: {EXPERT}.weight_packed", "download it again"),
    tensor_in_two_shards: ("' is in two shards", f"{SECOND} and model-copy.safetensors", "remove the wrong shard"),
    unknown_dtype: ("unknown dtype 'F6_E3M2'", f"{SECOND}: {EXPERT}.weight_scale", "halfbyte knows F64, "),
    shape_and_bytes_disagree: ("BF16 [32, 3] needs 192 bytes, the header gives 128", EXPERT, "the file is damaged"),
    index_points_outside: ("invalid shard name '../outside.safetensors'", INDEX, "inside the checkpoint's own"),
    index_with_an_absolute_path: ("invalid shard name '/", INDEX, "inside the checkpoint's own folder"),
    shard_is_a_link_that_leaves: (f"'{SECOND}' is a link to a path outside the folder", "source", "copy the file into"),
    tokenizer_is_a_link_that_leaves: (
        "'tokenizer.json' is a link to a path outside the folder",
        "source",
        "copy the file",
    ),
    folder_is_a_link_that_leaves: ("'more' is a link to a path outside the folder", "source", "copy the file"),
    tokenizer_is_a_link_to_nothing: ("'tokenizer.json' is a broken link", "source", "download it again"),
    pickles_only: ("only pickled weights (pytorch_model.bin), which can run code when loaded", "source", "convert"),
    missing_weight_scale: ("weight_scale is missing: found weight_packed I32", EXPERT, "download the whole"),
    expert_missing_in_one_layer: ("expert 3 is missing in layer 2", "layer 2", "download the whole checkpoint"),
    config_with_more_experts: (
        "n_routed_experts = 384, but each MoE layer has 4 experts",
        "config.json",
        "does not match",
    ),
    config_with_more_layers: ("num_hidden_layers = 61, but the tensors have 3 layers", "config.json", "does not match"),
    config_with_another_width: (
        "moe_intermediate_size = 2048, but '",
        "config.json",
        "config.json does not match the weights",
    ),
    config_of_another_format: (
        "declares modelopt, which means nvfp4, but the tensors are int4",
        "config.json",
        "does not match",
    ),
    config_of_no_format: (
        "config.json has no quantization_config, but the tensors are int4",
        "config.json",
        "does not match",
    ),
    unknown_model_type: ("unknown model_type 'llama'", "config.json", "supported: "),
    no_config: ("config.json is missing", "source", "download it too"),
}


@pytest.mark.parametrize("spoil", CASES, ids=lambda case: case.__name__)
def test_a_source_that_cannot_be_right(halfbyte, bad_source, tmp_path, spoil):
    spoil(bad_source)
    what, where, fix = refused(halfbyte, bad_source, tmp_path / "out")
    for part, text in zip(CASES[spoil], (what, where, fix), strict=True):
        assert part in text
    assert not (tmp_path / "out").exists()


def test_a_source_that_is_not_there(halfbyte, tmp_path):
    what, where, _ = refused(halfbyte, tmp_path / "nowhere", tmp_path / "out")
    assert (what, where) == ("the folder does not exist", str(tmp_path / "nowhere"))
    assert not (tmp_path / "out").exists()
