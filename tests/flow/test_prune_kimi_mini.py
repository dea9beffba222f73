"""kimi-mini with half of its experts in transformers' own class: all weights load, and the logits agree."""

from pathlib import Path

import pytest
import torch
from pruning import prune, some

from halfbyte.engine.pipeline import quantize
from halfbyte.recipe.load import load_recipe

MINI = Path(__file__).parents[2] / "models/kimi-mini"


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def load(folder):
    from transformers import Kimi_K25ForConditionalGeneration

    model, info = Kimi_K25ForConditionalGeneration.from_pretrained(
        folder, dtype=torch.float32, output_loading_info=True, trust_remote_code=False
    )
    assert not info["missing_keys"] and not info["mismatched_keys"] and not info["unexpected_keys"]
    return model.eval()


def cut(model, kept):
    """Prune a model in memory, in transformers' own modules, like the public REAP code."""
    layers = model.model.language_model.layers
    for layer, chosen in kept.items():
        mlp, index = layers[layer].mlp, torch.tensor(chosen)
        mlp.gate.weight = torch.nn.Parameter(mlp.gate.weight[index])
        mlp.gate.e_score_correction_bias = mlp.gate.e_score_correction_bias[index]
        for name in ("gate_up_proj", "down_proj"):
            setattr(mlp.experts, name, torch.nn.Parameter(getattr(mlp.experts, name)[index]))
        mlp.experts.num_experts = mlp.gate.num_experts = mlp.gate.n_routed_experts = len(chosen)


@torch.no_grad()
def test_transformers_loads_it_and_says_what_its_own_pruned_model_says(tmp_path):
    kept = some(MINI, 24)
    prune(MINI, tmp_path / "pruned", kept)
    recipe = load_recipe("kimi-k2.6-bf16")
    quantize(tmp_path / "pruned", tmp_path / "ours", recipe)
    quantize(MINI, tmp_path / "whole", recipe)
    ours, whole = load(tmp_path / "ours"), load(tmp_path / "whole")
    assert ours.config.text_config.n_routed_experts == 24
    tokens = torch.arange(5, 69).reshape(2, 32)
    before = whole(input_ids=tokens).logits
    cut(whole, kept)
    found, wanted = ours(input_ids=tokens).logits, whole(input_ids=tokens).logits
    assert torch.equal(found, wanted)
    assert not torch.equal(found, before)
