"""Scales of a source's FP8 KV cache: kept only if the output's config declares that cache."""

import json

import pytest
from pico import write_pico

from halfbyte.audit.run import audit
from halfbyte.checkpoint.folder import open_checkpoint
from halfbyte.checkpoint.headers import TensorSpec, lay_out, read_header
from halfbyte.engine.pipeline import plan, quantize
from halfbyte.families.model import describe
from halfbyte.inspect.recipe_sizes import gains
from halfbyte.recipe.load import load_recipe

LAYERS = "language_model.model.layers"
SCALES = (".k_scale", ".v_scale")
BF16 = [f"roles.{role}=bf16" for role in ("shared_experts", "dense_mlp")]  # stored as NVFP4 in this source
WITHOUT = {
    "kimi-k2.6-bf16": [],
    "kimi-k2.6-mxfp4-wafer": BF16,
    "kimi-k2.6-nvfp4a16": BF16,
    "kimi-k2.6-nvfp4-nvidia": BF16,  # fp8_cast: engines take 1.0
}


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return write_pico(tmp_path_factory.mktemp("kv") / "source", "nvfp4")


def kv_scales(names):
    return sorted(name for name in names if name.endswith(SCALES))


def planned(source, recipe, changes=()):
    made = plan(open_checkpoint(source), load_recipe(recipe, list(changes)))
    return kv_scales(spec.name for job in made.jobs for spec in job.outputs)


def test_the_source_has_two_scales_a_layer(source):
    assert len(kv_scales(open_checkpoint(source).tensors)) == 6


@pytest.mark.parametrize("recipe", WITHOUT)
def test_an_output_without_calibrated_kv_cache_drops_them(source, recipe):
    assert planned(source, recipe, WITHOUT[recipe]) == []


def test_an_output_with_calibrated_kv_cache_keeps_them(source):
    found = planned(source, "kimi-k2.6-nvfp4-nvidia", [*BF16, "quantize.kv_cache=fp8"])
    assert found == kv_scales(open_checkpoint(source).tensors)


def test_the_other_spelling_makes_way_for_calibrated_scales(tmp_path):
    folder = write_pico(tmp_path / "source", "nvfp4")
    for path in folder.glob("*.safetensors"):  # compressed-tensors' names
        raw = path.read_bytes()
        infos = list(read_header(path, path.name).values())
        names = {
            t.name: t.name.replace("k_proj.k_scale", "k_scale").replace("v_proj.v_scale", "v_scale") for t in infos
        }
        head, placed = lay_out([TensorSpec(names[t.name], t.dtype, t.shape) for t in infos], path.name)
        data = {names[t.name]: raw[t.begin : t.end] for t in infos}
        path.write_bytes(head + b"".join(data[t.name] for t in placed))
    index = folder / "model.safetensors.index.json"
    index.write_text(index.read_text().replace("k_proj.k_scale", "k_scale").replace("v_proj.v_scale", "v_scale"))
    found = planned(folder, "kimi-k2.6-nvfp4-nvidia", [*BF16, "quantize.kv_cache=fp8"])
    assert len(found) == 6
    assert all(name.endswith(("k_proj.k_scale", "v_proj.v_scale")) for name in found)


def test_inspect_counts_what_the_plan_writes(source):
    model = describe(open_checkpoint(source))
    gain = next(gain for gain in gains(model) if gain.recipe == "kimi-k2.6-bf16")
    made = plan(open_checkpoint(source), load_recipe("kimi-k2.6-bf16"))
    assert gain.nbytes == sum(tensor.nbytes for shard in made.shards for tensor in shard.tensors)


def test_a_decoded_checkpoint_has_none_and_audits_clean(source, tmp_path):
    quantize(source, tmp_path / "out", load_recipe("kimi-k2.6-bf16"))
    assert kv_scales(open_checkpoint(tmp_path / "out").tensors) == []
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert not any("kv_cache" in key for key in config | config["text_config"])
    assert not (tmp_path / "out" / "hf_quant_config.json").exists()
    assert audit(tmp_path / "out", against=source).failed == []
    assert "structure" not in audit(source).failed  # its hf_quant_config.json declares the cache


def add_scale(path, name):
    raw, infos = path.read_bytes(), list(read_header(path, path.name).values())
    specs = [*(TensorSpec(t.name, t.dtype, t.shape) for t in infos), TensorSpec(name, "F32", ())]
    head, placed = lay_out(specs, path.name)
    data = {t.name: raw[t.begin : t.end] for t in infos} | {name: b"\0\0\0\x3f"}
    path.write_bytes(head + b"".join(data[t.name] for t in placed))


@pytest.mark.parametrize("with_plan", [True, False])
def test_audit_finds_stale_scales_without_a_plan(source, tmp_path, with_plan):
    out = tmp_path / "out"
    quantize(source, out, load_recipe("kimi-k2.6-bf16"))
    for number in range(3):  # in all layers: what only one layer has is found by other means
        add_scale(out / f"model-{number + 1:05d}-of-000006.safetensors", f"{LAYERS}.{number}.self_attn.k_proj.k_scale")
    if not with_plan:
        (out / "halfbyte" / "plan.json").unlink()
    structure = next(f for f in audit(out).findings if f.check == "structure")
    assert structure.level == "bad"
    assert structure.examples == tuple(f"{LAYERS}.{number}.self_attn.k_proj.k_scale" for number in range(3))
    assert "KV cache" in structure.text
