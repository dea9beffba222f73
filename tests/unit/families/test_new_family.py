"""A family that is one new folder: its checkpoints are inspected, planned, quantized and audited by unchanged code."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from pico import write_shards

from halfbyte.checkpoint.folder import open_checkpoint
from halfbyte.engine.backends.cuda.placement import stacks_by_layer
from halfbyte.engine.pipeline import plan
from halfbyte.errors import CheckpointError
from halfbyte.families import registry
from halfbyte.families.model import describe
from halfbyte.families.registry import text_model
from halfbyte.recipe.load import load_recipe

LAYERS, EXPERTS, WIDTH, INNER, WORDS = 2, 4, 64, 32, 96
SOURCE = Path(registry.__file__).parents[1]
CONFIG = {
    "model_type": "blocks_moe", "n_layers": LAYERS, "n_experts": EXPERTS, "top_k": 2, "d_model": WIDTH,
    "d_expert": INNER, "n_vocab": WORDS,
}  # fmt: skip
RECIPE = """
name: blocks-nvfp4
description: Routed experts in NVFP4, weights only.
roles: {routed_experts: quantize, dense_mlp: keep, attention: keep, router: keep, embed: keep, head: keep, norm: keep,
        shared_experts: keep, vision: keep, projector: keep, other_buffers: keep}
quantize:
  format: nvfp4_ct
  scales: max
  activations: none
  config: {ignore_patterns: ["re:.*attn.*", "re:.*router$", "re:output$"]}
shards: layers
"""


@pytest.fixture
def checkpoint(tmp_path, monkeypatch):
    monkeypatch.setattr(registry, "FAMILIES", (*registry.FAMILIES, "blocks_moe"))
    random, folder = np.random.default_rng(0), tmp_path / "source"
    folder.mkdir()
    write_shards(folder, {"model.safetensors": dict(tensors(random))}, single=True)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    return folder


@pytest.fixture
def recipe(tmp_path):
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    return tmp_path / "recipe.yaml"


def tensors(random):
    import torch

    def tensor(*shape):
        return torch.from_numpy(np.float32(random.standard_normal(shape) / 50)).bfloat16()

    yield "transformer.wte.weight", tensor(WORDS, WIDTH)
    yield "transformer.ln_f.weight", tensor(WIDTH)
    yield "output.weight", tensor(WORDS, WIDTH)
    for layer in range(LAYERS):
        at = f"transformer.blocks.{layer}"
        yield from ((f"{at}.{name}.weight", tensor(WIDTH)) for name in ("ln_1", "ln_2"))
        yield from ((f"{at}.attn.{name}.weight", tensor(WIDTH, WIDTH)) for name in ("wq", "wk", "wv", "wo"))
        yield f"{at}.ffn.router.weight", tensor(EXPERTS, WIDTH)
        for expert in range(EXPERTS):
            yield f"{at}.ffn.bank.{expert}.w1.weight", tensor(INNER, WIDTH)
            yield f"{at}.ffn.bank.{expert}.w3.weight", tensor(INNER, WIDTH) * 3  # the larger of the fused pair
            yield f"{at}.ffn.bank.{expert}.w2.weight", tensor(WIDTH, INNER)


def test_it_is_inspected_planned_quantized_and_audited(checkpoint, recipe, tmp_path, halfbyte):
    code, shown, problems = halfbyte("inspect", checkpoint, "--json")
    assert code == 0, problems
    assert json.loads(shown)["family"] == "Blocks-MoE family"
    code, _, problems = halfbyte("plan", checkpoint, "-r", recipe)
    assert code == 0, problems
    out = tmp_path / "out"
    code, _, problems = halfbyte("quantize", checkpoint, out, "-r", recipe, "-q")
    assert code == 0, problems
    code, _, problems = halfbyte("audit", out, "--against", checkpoint)
    assert code == 0, problems
    model = describe(open_checkpoint(out))
    assert {linear.role for linear in model.linears.values() if linear.format == "nvfp4_ct"} == {"routed_experts"}


def test_fused_projections_share_a_scale_under_any_name(checkpoint, recipe, tmp_path, halfbyte):
    from safetensors.torch import load_file

    out = tmp_path / "out"
    assert halfbyte("quantize", checkpoint, out, "-r", recipe, "-q")[0] == 0
    written = {name: tensor for shard in out.glob("*.safetensors") for name, tensor in load_file(shard).items()}
    at, scale = "transformer.blocks.1.ffn.bank.2", "weight_global_scale"
    gate, up, down = (written[f"{at}.{name}.{scale}"] for name in ("w1", "w3", "w2"))
    assert gate == up != down


def test_projections_are_named_by_what_they_do(checkpoint, recipe):
    planned = plan(open_checkpoint(checkpoint), load_recipe(str(recipe), []))
    for stacks in stacks_by_layer(planned, LAYERS, forward=False):
        assert {stack.name for stack in stacks} == {"gate", "up", "down"}
    experts = planned.model.expert_linears()
    assert len(experts) == LAYERS * EXPERTS * 3
    assert experts[1, 3, "down"].module == "transformer.blocks.1.ffn.bank.3.w2"
    assert experts[1, 3, "down"].in_layer == "ffn.bank.3.w2"
    assert planned.model.family.experts_module("transformer.blocks.1.ffn.bank.3.w2") == "transformer.blocks.1.ffn.bank"


def test_layers_without_an_adapter_cannot_be_run(checkpoint):
    with pytest.raises(CheckpointError, match="unsupported model_type 'blocks_moe'") as caught:
        text_model(open_checkpoint(checkpoint).config)
    assert "kimi_k25" in caught.value.fix


VLLM = re.compile(r"layer\.ckpt_(gate|up|down)_proj_name")  # vLLM's own attributes, with the checkpoint's names
NAMES = re.compile(r"gate_proj|up_proj|down_proj|self_attn|mlp\.experts|deepseek_v3|DeepseekV3")


def test_only_families_spell_names():
    spelled = {
        f"{path.relative_to(SOURCE)}: {line.strip()}"
        for path in SOURCE.rglob("*.py")
        if SOURCE / "families" not in path.parents
        for line in path.read_text().splitlines()
        if NAMES.search(VLLM.sub("", line))
    }
    assert spelled == set()
