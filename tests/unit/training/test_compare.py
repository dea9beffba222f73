"""Variants equal halfbyte's output, pruning drops the stated experts, and the statistics are McNemar's."""

import json
import sys

import pytest
import torch
from toy import toy_checkpoint, toy_model
from training import compare, mixture, restore, score, variants
from training.model import Mini
from training.shape import TOY

from halfbyte.engine.pipeline import quantize
from halfbyte.recipe.load import load_recipe


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return toy_checkpoint(tmp_path_factory.mktemp("compare") / "int4")


@pytest.mark.parametrize(
    ("name", "recipe"), [("nvfp4", "kimi-k2.6-nvfp4a16"), ("mxfp4", "kimi-k2.6-mxfp4-wafer"), (None, "kimi-k2.6-bf16")]
)
def test_a_variant_is_what_halfbyte_writes(folder, tmp_path, name, recipe):
    quantize(folder, tmp_path / "out", load_recipe(recipe))
    base = variants.as_released(folder)
    wanted = variants.VARIANTS[name](base) if name else base
    assert compare.same_weights(restore.state(tmp_path / "out"), wanted)
    assert compare.same_weights(wanted, base) == (name is None)


def test_a_training_run_and_its_export_are_the_same_model(folder, tmp_path):
    from training import pieces

    pieces.save(toy_model().state_dict(), tmp_path)
    assert compare.same_weights(variants.as_released(tmp_path), variants.as_released(folder))


def test_pruning_drops_whole_experts_with_their_rows_and_biases():
    state = toy_model().state_dict()
    pruned = variants.pruned(state, 0.25)
    (layer,) = variants.moe_layers(state)
    count = TOY.experts - 1
    assert len(pruned[f"{layer}.gate.weight"]) == len(pruned[f"{layer}.gate.e_score_correction_bias"]) == count
    for kept in range(count):
        was = (state[f"{layer}.gate.weight"] == pruned[f"{layer}.gate.weight"][kept]).all(-1).nonzero().item()
        bias = f"{layer}.gate.e_score_correction_bias"
        assert pruned[bias][kept] == state[bias][was]
        for which in variants.LINEARS:
            name = f"{layer}.experts.{which}"
            assert torch.equal(pruned[name][kept], state[name][was])
    assert compare.same_weights(pruned, variants.pruned(state, 0.25))
    assert not compare.same_weights(pruned, variants.pruned(state, 0.25, seed=1))
    assert compare.same_weights(state, variants.pruned(state, 0.0))


@pytest.mark.parametrize(
    ("lost", "gained", "p"),
    [(0, 0, 1.0), (5, 5, 1.0), (0, 5, 0.0625), (5, 0, 0.0625), (9, 1, 0.021484375), (30, 10, 0.002221427)],
)
def test_mcnemar(lost, gained, p):
    assert compare.mcnemar(lost, gained) == pytest.approx(p, rel=1e-5)


def test_pairs_are_counted():
    base = compare.Answers(["a", "b", "c", "d"], [True, True, False, False])
    other = compare.Answers(["a", "x", "y", "d"], [True, False, True, False])
    found = other.against(base)
    assert (found.items, found.right, found.lost, found.gained, found.same_text) == (4, 2, 1, 1, 2)
    assert found.score == 0.5 and found.error == 0.25 and found.p == 1.0


def test_the_report_holds_every_variant(folder, tmp_path, monkeypatch, capsys):
    def right_unless_pruned(model: Mini, items, new_tokens=0):
        return ["right" if model.geometry.experts == TOY.experts else "wrong" for _ in items]

    monkeypatch.setattr(compare, "MINI", TOY)
    monkeypatch.setattr(score, "answers", right_unless_pruned)
    monkeypatch.setattr(mixture.modules()["tools"], "score", lambda item, output: output == "right")
    command = [
        "compare", str(folder), f"twin={folder}", "--items", "8", "--domains", "tools", "--loss-tokens", "500",
        "--out", str(tmp_path),
    ]  # fmt: skip
    monkeypatch.setattr(sys, "argv", command)
    compare.main()
    found = json.loads((tmp_path / "compare.json").read_text())["variants"]
    assert list(found) == ["int4", "twin", "nvfp4", "mxfp4", "prune25"]
    assert [row["same_weights"] for row in found.values()] == [True, True, False, False, False]
    assert found["nvfp4"]["domains"]["tools"] == found["int4"]["domains"]["tools"]
    assert found["prune25"]["domains"]["all"] == found["prune25"]["domains"]["tools"]
    pruned = found["prune25"]["domains"]["tools"]
    assert (pruned["score"], pruned["lost"], pruned["gained"], pruned["p"]) == (0.0, 8, 0, 0.0078125)
    assert found["twin"]["loss"] == found["int4"]["loss"] != found["nvfp4"]["loss"]
    assert "| tools (8) | 100.0 ± 0.0 |" in capsys.readouterr().out
