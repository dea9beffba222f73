"""Every bad input that `quantize` can be given: one sentence that says what, where and what to do; nothing written.

The commands are the real ones. What the parsers refuse in detail is tested beside them (`unit/source`, `unit/models`).
"""

import hashlib
import json
import shutil
import struct

import pytest
from pico import write_pico

from halfbyte.errors import EXIT_MACHINE, EXIT_USAGE
from halfbyte.recipe import recipe_text

RECIPE = "kimi-k2.6-mxfp4-wafer"
INDEX = "model.safetensors.index.json"
FIRST, SECOND, THIRD = (f"model-0000{i}-of-000006.safetensors" for i in (1, 2, 3))
AT = "language_model.model.layers"
EXPERT = f"{AT}.1.mlp.experts.2.up_proj"


@pytest.fixture(scope="module")
def pristine(tmp_path_factory):
    """One checkpoint of each kind that is asked for, written once; tests break copies."""
    written = {}

    def get(kind):
        if kind not in written:
            written[kind] = write_pico(tmp_path_factory.mktemp("pristine") / kind, kind)
        return written[kind]

    return get


@pytest.fixture
def source(pristine, tmp_path):
    return shutil.copytree(pristine("int4-k2.6"), tmp_path / "source")


def everything(folder):
    """What lies in a folder: each file with its hash, each link with its target."""
    paths = sorted(folder.rglob("*"))
    links = {str(path): str(path.readlink()) for path in paths if path.is_symlink()}
    files = {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in paths if path.is_file()}
    return {**files, **links}


def refused(halfbyte, source, out, *options, recipe=RECIPE, code=EXIT_USAGE):
    """Run the command, and return the sentence, the place and the remedy of its error."""
    before = everything(source)
    left, printed, words = halfbyte("-q", "quantize", source, out, "-r", recipe, *options)
    assert (left, printed) == (code, ""), words
    what, where, fix = words.splitlines()
    assert what.startswith("✗ ")
    assert where.startswith("  where ")
    assert fix.startswith("  fix   ")
    assert everything(source) == before
    return what[2:], where[8:], fix[8:]


# --- shards and their headers ---


def edit_header(path, change):
    """Change the header's JSON and leave the bytes of the tensors as they are."""
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = change(json.loads(data[8 : 8 + length]))
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(raw)) + raw + data[8 + length :])


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
    """Write the shards and the index again, without some tensors."""
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
    truncated_shard: ("the tensors end at byte ", SECOND, "download this shard again: it is cut off"),
    shard_of_a_few_bytes: ("the file has 3 bytes, too few for a header", SECOND, "download this shard again"),
    header_beyond_the_file: ("the header should have 1,000,000,000,000,000 bytes, but the file has ", SECOND, "again"),
    shard_is_no_safetensors: ("the header should have ", SECOND, "it is cut off or not safetensors"),
    overlapping_offsets: ("the tensor overlaps the tensor before it", f"{SECOND}: {AT}.1.", "the file is damaged"),
    offsets_out_of_range: ("the tensor leaves a gap before it", f"{SECOND}: {AT}.1.", "the file is damaged"),
    tensor_twice_in_a_header: ("the header names it twice", f"{SECOND}: {EXPERT}.weight_packed", "download it again"),
    tensor_in_two_shards: ("' is in two shards", f"{SECOND} and model-copy.safetensors", "remove the shard"),
    unknown_dtype: ("unknown dtype 'F6_E3M2'", f"{SECOND}: {EXPERT}.weight_scale", "halfbyte knows F64, "),
    shape_and_bytes_disagree: ("BF16 [32, 3] needs 192 bytes, the header gives 128", EXPERT, "the file is damaged"),
    index_points_outside: ("the index names a shard '../outside.safetensors'", INDEX, "inside the checkpoint's own"),
    index_with_an_absolute_path: ("the index names a shard '/", INDEX, "inside the checkpoint's own folder"),
    shard_is_a_link_that_leaves: (f"'{SECOND}' is a link that leaves the folder", "source", "copy the file into"),
    tokenizer_is_a_link_that_leaves: ("'tokenizer.json' is a link that leaves the folder", "source", "copy the file"),
    folder_is_a_link_that_leaves: ("'more' is a link that leaves the folder", "source", "copy the file"),
    tokenizer_is_a_link_to_nothing: ("'tokenizer.json' is a link to nothing", "source", "download it again"),
    pickles_only: ("only pickled weights (pytorch_model.bin), which can run code when loaded", "source", "convert"),
    missing_weight_scale: ("weight_scale is missing: there is weight_packed I32", EXPERT, "download the whole"),
    expert_missing_in_one_layer: ("expert 3 is missing in layer 2", "layer 2", "download the whole checkpoint"),
    config_with_more_experts: ("n_routed_experts = 384, but each MoE layer has 4 experts", "config.json", "together"),
    config_with_more_layers: ("num_hidden_layers = 61, but the tensors have 3 layers", "config.json", "together"),
    config_with_another_width: ("moe_intermediate_size = 2048, but '", "config.json", "do not belong together"),
    config_of_another_format: ("declares modelopt, which is nvfp4, but there is int4", "config.json", "together"),
    config_of_no_format: ("config.json has no quantization_config, but there is int4", "config.json", "together"),
    unknown_model_type: ("unknown model_type 'llama'", "config.json", "halfbyte knows "),
    no_config: ("config.json is missing", "source", "download it too"),
}


@pytest.mark.parametrize("spoil", CASES, ids=lambda case: case.__name__)
def test_a_source_that_cannot_be_right(halfbyte, source, tmp_path, spoil):
    spoil(source)
    what, where, fix = refused(halfbyte, source, tmp_path / "out")
    for part, text in zip(CASES[spoil], (what, where, fix), strict=True):
        assert part in text
    assert not (tmp_path / "out").exists()


def test_a_source_that_is_not_there(halfbyte, tmp_path):
    what, where, _ = refused(halfbyte, tmp_path / "nowhere", tmp_path / "out")
    assert (what, where) == ("there is no such folder", str(tmp_path / "nowhere"))
    assert not (tmp_path / "out").exists()


# --- scales that are no numbers ---

NAN, INF = float("nan"), float("inf")
E4M3_NAN, E8M0_NAN = 0x7F, 0xFF
# Kind of checkpoint, the tensor that is spoilt, what is written into it.
SCALES = [
    ("int4-k2.6", "weight_scale", NAN),
    ("int4-k2.6", "weight_scale", INF),
    ("int4-k2.6", "weight_scale", -INF),
    ("fp8-block-k2", "weight_scale_inv", NAN),
    ("fp8-block-k2", "weight_scale_inv", INF),
    ("fp8-channel", "weight_scale", NAN),
    ("fp8-channel", "weight_scale", INF),
    ("nvfp4", "weight_scale", E4M3_NAN),
    ("nvfp4", "weight_scale", E4M3_NAN | 0x80),
    ("nvfp4", "weight_scale_2", NAN),
    ("nvfp4", "weight_scale_2", INF),
    ("nvfp4", "weight_scale_2", 0.0),
    ("nvfp4_ct", "weight_scale", E4M3_NAN),
    ("nvfp4_ct", "weight_global_scale", NAN),
    ("nvfp4_ct", "weight_global_scale", INF),
    ("nvfp4_ct", "weight_global_scale", -1.0),
    ("mxfp4", "weight_scale", E8M0_NAN),
    ("mxfp4_ct", "weight_scale", E8M0_NAN),
    ("bf16", "weight", NAN),  # to BF16 it would be the same bytes: nothing is decoded
]
RECIPES = [RECIPE, "kimi-k2.6-nvfp4a16", "kimi-k2.6-fp8-reference", "kimi-k2.6-bf16"]
# All that is quantized is encoded or decoded, whatever the source keeps in its own format.
DECODED = [f"--set=roles.{role}=bf16" for role in ("attention", "dense_mlp", "shared_experts")]


def spoil_scale(folder, module, suffix, value):
    """Write a value into the last element of a tensor; an integer is a bit pattern. Return the shard's old bytes."""
    import torch
    from safetensors.torch import load_file, save_file

    shard = "model.safetensors"
    if (folder / INDEX).exists():
        shard = json.loads((folder / INDEX).read_text())["weight_map"][f"{module}.{suffix}"]
    tensors, before = load_file(folder / shard), (folder / shard).read_bytes()
    tensor = tensors[f"{module}.{suffix}"]
    flat = (tensor.view(torch.uint8) if isinstance(value, int) else tensor).view(-1)
    flat[-1] = value
    save_file(tensors, folder / shard)
    return shard, before


@pytest.mark.parametrize(
    ("kind", "suffix", "value", "recipe"),
    [(*row, recipe) for row in SCALES for recipe in RECIPES if (row[0], recipe) != ("bf16", "kimi-k2.6-bf16")],
)
def test_scales_that_are_no_numbers(halfbyte, pristine, tmp_path, kind, suffix, value, recipe):
    """They are found while the weights stream by: the tensor is named, and what was finished before stays."""
    source, out = shutil.copytree(pristine(kind), tmp_path / "source"), tmp_path / "out"
    prefix = "language_model." if kind in ("int4-k2.6", "nvfp4", "nvfp4_ct", "mxfp4", "mxfp4_ct") else ""
    module = f"{prefix}model.layers.2.mlp.experts.3.up_proj"
    shard, before = spoil_scale(source, module, suffix, value)
    options = ["--threads", "1", *([] if recipe == "kimi-k2.6-bf16" else DECODED)]
    what, where, fix = refused(halfbyte, source, out, *options, recipe=recipe)
    assert where == f"{shard}: {module}"
    assert "NaN" in what or "infinity" in what or "not finite" in what or "not one positive number" in what
    assert fix.endswith("run the same command: finished shards are kept")
    kept = {path.name: path.read_bytes() for path in out.glob("*.safetensors")}
    assert len(kept) >= 2  # layers 0 and 1
    assert sorted(path.name for path in out.iterdir()) == ["halfbyte", *sorted(kept)]  # nothing half-written

    (source / shard).write_bytes(before)
    code, _, words = halfbyte("quantize", source, out, "-r", recipe, *options)
    assert code == 0, words
    assert {name: (out / name).read_bytes() for name in kept} == kept


# --- where the output would go, and the recipe ---


def test_an_output_folder_inside_the_source(halfbyte, source):
    for out in (source, source / "out", source / "a" / "b", source.parent / "x" / ".." / source.name / "out"):
        what, where, fix = refused(halfbyte, source, out)
        assert (what, where, fix) == (
            "the output folder lies inside the source",
            str(out),
            "give a folder elsewhere",
        )


def test_an_output_folder_that_holds_something(halfbyte, source, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.txt").write_text("mine")
    assert refused(halfbyte, source, tmp_path / "out")[0] == "the output folder is not empty"
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["thesis.txt"]


@pytest.mark.parametrize("below", ["", "out", "a/b"])
def test_an_output_folder_where_a_file_is(halfbyte, source, tmp_path, below):
    (tmp_path / "file").write_text("mine")
    what, where, _ = refused(halfbyte, source, tmp_path / "file" / below)
    assert (what, where) == ("the output lies where a file is", str(tmp_path / "file"))
    assert (tmp_path / "file").read_text() == "mine"


def test_a_recipe_for_another_family(halfbyte, source, tmp_path):
    mine = tmp_path / "text-only.yaml"
    lines = [
        line for line in recipe_text(RECIPE).splitlines() if not line.strip().startswith(("vision:", "projector:"))
    ]
    mine.write_text("\n".join(lines))
    what, where, fix = refused(halfbyte, source, tmp_path / "out", recipe=str(mine))
    assert what.startswith("recipe 'kimi-k2.6-mxfp4-wafer' does not say what happens to ")
    assert where.startswith(("vision_tower.", "mm_projector."))
    assert "this recipe is for another family" in fix
    assert not (tmp_path / "out").exists()


def test_a_disk_that_is_too_small(halfbyte, source, tmp_path, monkeypatch):
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1000))
    what, where, fix = refused(halfbyte, source, tmp_path / "out", code=EXIT_MACHINE)
    assert what.startswith("the output needs 0.3 GB, the disk has 0.0 GB free")
    assert where == str(tmp_path / "out")
    assert fix.startswith("free some space")
    assert not (tmp_path / "out").exists()
