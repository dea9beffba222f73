"""Router tuning moves gate rows towards the unpruned model, and changes nothing else."""

from pathlib import Path

import torch
from training import compare, corpus, restore, tune_router, variants

MINI = Path(__file__).parents[3] / "models" / "kimi-mini"


def test_only_gate_rows_learn_and_the_distance_shrinks(monkeypatch):
    monkeypatch.setattr(tune_router, "WARMUP", 1)
    base = restore.state(MINI)
    kept = {layer: range(0, 32, 2) for layer in range(1, 6)}
    pruned = variants.with_kept(base, kept)
    shard = corpus.make_shard(3, 512)
    found, losses = tune_router.tuned(compare.model_of(base, "cpu"), pruned, [shard], steps=6, batch_tokens=512)
    changed = {name for name in pruned if not torch.equal(pruned[name], found[name])}
    assert changed == {f"layers.{layer}.mlp.gate.weight" for layer in range(1, 6)}
    assert all(torch.equal(found[name], found[name].bfloat16().float()) for name in changed)
    assert losses[-1] < 0.95 * losses[0]  # the same text every time


def test_kept_experts_are_the_named_ones():
    state = {
        "layers.3.mlp.experts.gate_proj": torch.arange(6.0),
        "layers.3.mlp.experts.up_proj": torch.arange(6.0),
        "layers.3.mlp.experts.down_proj": torch.arange(6.0),
        "layers.3.mlp.gate.weight": torch.arange(6.0),
        "layers.3.mlp.gate.e_score_correction_bias": torch.arange(6.0),
        "norm.weight": torch.arange(6.0),
    }
    found = variants.with_kept(state, {3: (1, 4)})
    assert found.pop("norm.weight").tolist() == [0, 1, 2, 3, 4, 5]
    assert all(tensor.tolist() == [1, 4] for tensor in found.values())
