"""Scales that are not finite numbers, in every stored format: detected while streaming; finished shards are kept."""

import json
import shutil

import pytest
from refusals import INDEX, RECIPE, refused

NAN, INF = float("nan"), float("inf")
E4M3_NAN, E8M0_NAN = 0x7F, 0xFF
# Kind of checkpoint, damaged tensor, written value.
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
# Every quantized tensor is encoded or decoded, whatever format the source keeps.
DECODED = [f"--set=roles.{role}=bf16" for role in ("attention", "dense_mlp", "shared_experts")]


def spoil_scale(folder, module, suffix, value):
    """Write a value into the last element of a tensor (an integer is a bit pattern). Return the shard's old bytes."""
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
def test_scales_that_are_no_numbers(halfbyte, pristine_kinds, tmp_path, kind, suffix, value, recipe):
    """They are found while streaming: the tensor is named, and finished shards are kept."""
    source, out = shutil.copytree(pristine_kinds(kind), tmp_path / "source"), tmp_path / "out"
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
