"""Pruned checkpoints with one wrong row, bias, expert or number: the audit finds and names it."""

import json
import shutil

import pytest
from card_evidence import LOOPS
from damage import edit_json, edit_shard, settle
from pico import write_pico

from halfbyte.audit.run import audit
from halfbyte.checkpoint.folder import open_checkpoint
from halfbyte.engine.pipeline import quantize
from halfbyte.families.model import describe
from halfbyte.plan.prune_plan import LayerChoice, PrunePlan
from halfbyte.plan.pruned import router_shape
from halfbyte.prune.options import recipe_of_plan

KEPT = {1: (1, 2, 5, 6), 2: (0, 3, 4, 7)}
LAYER = "language_model.model.layers.1"
GATE, BIAS = f"{LAYER}.mlp.gate.weight", f"{LAYER}.mlp.gate.e_score_correction_bias"
SHARD = "model-00002-of-000006.safetensors"


@pytest.fixture(scope="module")
def pruned(tmp_path_factory):
    root = tmp_path_factory.mktemp("pruned")
    source = write_pico(root / "source", experts=8)
    checkpoint = open_checkpoint(source)
    layers = {layer: LayerChoice(kept) for layer, kept in KEPT.items()}
    plan = PrunePlan(router=router_shape(describe(checkpoint), checkpoint.config), layers=layers, rule=None)
    quantize(source, root / "out", recipe_of_plan(plan, "layers"), prune_plan=plan)
    return root


@pytest.fixture
def out(pruned, tmp_path):
    return shutil.copytree(pruned / "out", tmp_path / "out")


def prune_finding(found):
    (finding,) = [finding for finding in found.findings if finding.check == "prune"]
    return finding


def test_a_pruned_output_passes(pruned):
    found = audit(pruned / "out", against=pruned / "source")
    assert found.failed == []
    said = prune_finding(found).text
    assert "n_routed_experts=4, num_experts_per_tok=2, n_group=1, topk_group=1" in said
    assert (
        "8 rows of gate.e_score_correction_bias and 8 rows of gate.weight match the source, max difference 0.0" in said
    )
    assert "72 expert tensors" in said
    alone = prune_finding(audit(pruned / "out"))
    assert alone.level == "note" and "pass --against SRC" in alone.text


def swapped_rows(tensors):
    dtype, shape, data = tensors[GATE]
    row = len(data) // shape[0]
    tensors[GATE] = (dtype, shape, data[row : 2 * row] + data[:row] + data[2 * row :])


def off_by_one(tensors):
    """Off-by-one router rows, counted from the wrong end."""
    dtype, shape, data = tensors[GATE]
    row = len(data) // shape[0]
    tensors[GATE] = (dtype, shape, data[row:] + data[:row])


def wrong_bias(tensors):
    dtype, shape, data = tensors[BIAS]
    tensors[BIAS] = (dtype, shape, data[:4] + data[:4] + data[8:])


def last_bit_of_a_bias(tensors):
    dtype, shape, data = tensors[BIAS]
    tensors[BIAS] = (dtype, shape, bytes([data[0] ^ 1]) + data[1:])


def swapped_experts(tensors):
    for name in [name for name in tensors if ".experts.0." in name]:
        other = name.replace(".experts.0.", ".experts.3.")
        tensors[name], tensors[other] = tensors[other], tensors[name]


def one_scale(tensors):
    name = f"{LAYER}.mlp.experts.2.up_proj.weight_scale"
    dtype, shape, data = tensors[name]
    tensors[name] = (dtype, shape, data[:-1] + bytes([data[-1] ^ 1]))


@pytest.mark.parametrize(
    ("damage", "number", "says"),
    [
        (swapped_rows, 2, "row 0 should be that of the source's expert 1, but is that of expert 2"),
        (off_by_one, 4, "row 3 should be that of the source's expert 6, but is that of expert 1"),
        (wrong_bias, 1, "row 1 should be that of the source's expert 2, but is that of expert 1"),
        (last_bit_of_a_bias, 1, "differs by "),
        (
            swapped_experts,
            12,  # all but weight_shape, which is alike
            "experts.0.down_proj.weight_packed is not the source's",
        ),
        (
            one_scale,
            1,
            "experts.2.up_proj.weight_scale is not the source's language_model.model.layers.1.mlp.experts.5",
        ),
    ],
)
def test_wrong_bytes_of_a_pruned_output_are_found(pruned, out, damage, number, says):
    edit_shard(out, SHARD, damage)
    settle(out)
    found = audit(out, against=pruned / "source")
    assert found.failed == ["prune"]
    finding = prune_finding(found)
    assert len(finding.examples) == number
    assert any(says in example for example in finding.examples), finding.examples
    tensors = number if damage in (swapped_experts, one_scale) else 0
    assert finding.text.startswith(f"{number - tensors} router row")
    assert f"{tensors} expert tensor" in finding.text
    assert ("max difference" in finding.text) == (not tensors)
    assert "max difference 0.0 " not in f"{finding.text} "


def test_wrong_count_in_config(pruned, out):
    edit_json(out / "config.json", lambda config: config["text_config"].update(n_routed_experts=8))
    for found in (audit(out, against=pruned / "source"), audit(out)):
        assert "prune" in found.failed and "config" in found.failed
        assert "config.json declares 8 experts, the plan keeps 4" in prune_finding(found).examples


def test_an_expert_that_is_not_there(pruned, out):
    edit_shard(out, SHARD, lambda tensors: [tensors.pop(name) for name in list(tensors) if ".experts.3." in name])
    settle(out)
    for found in (audit(out, against=pruned / "source"), audit(out)):
        assert "prune" in found.failed and "structure" in found.failed
        assert "layer 1 has 3 experts, the plan keeps 4" in prune_finding(found).examples


def test_an_unpruned_gate_is_found(pruned, out):
    def whole(tensors):
        dtype, (rows, columns), data = tensors[GATE]
        tensors[GATE] = (dtype, (2 * rows, columns), data + data)

    edit_shard(out, SHARD, whole)
    settle(out)
    found = audit(out)
    assert "prune" in found.failed
    assert f"{GATE} has the shape [8, 64], the plan keeps 4 experts" in prune_finding(found).examples


def test_a_plan_that_was_changed(pruned, out):
    def change(plan):
        plan["layers"]["1"]["kept"] = [0, 2, 5, 6]

    edit_json(out / "halfbyte/prune-plan.json", change)
    found = audit(out, against=pruned / "source")
    assert "prune" in found.failed
    assert prune_finding(found).text == "halfbyte/prune-plan.json was changed after the run"


def test_a_missing_prune_plan_is_found(pruned, out):
    (out / "halfbyte/prune-plan.json").unlink()
    found = audit(out, against=pruned / "source")
    assert found.failed == ["prune"]
    assert "cannot be read" in prune_finding(found).text


def loops_finding(out):
    (finding,) = [finding for finding in audit(out).findings if finding.check == "loops"]
    return finding


@pytest.mark.parametrize(
    ("text", "level", "says"),
    [
        (None, "note", "not measured; halfbyte loops"),
        (
            '{"level": "bad", "loops": 9, "texts": 32, "short": 3}',
            "bad",
            "9 of 32 texts loop, 3 end after a few words",
        ),
        ('{"level": "good", "loops": 0, "texts": 32, "short": 1}', "good", "0 of 32 texts loop, 1 end after a few"),
        ('{"level": "note", "loops": 1, "texts": 32, "short": 1}', "note", "too few texts for a verdict"),
        ('{"loops": 1, "texts": 32, "short": 1}', "note", "cannot be read"),
        ("[1", "note", "cannot be read"),
    ],
)
def test_a_looping_build_is_flagged_for_whoever_publishes_it(out, text, level, says):
    if text is not None:
        held = json.dumps({**LOOPS, **json.loads(text)}) if "level" in text else text
        (out / "halfbyte" / "loops.json").write_text(held)
    finding = loops_finding(out)
    assert finding.level == level
    assert says in finding.text


def test_without_its_plan_the_source_is_not_required(pruned, out):
    (out / "halfbyte" / "prune-plan.json").unlink()
    found = {finding.check: finding.text for finding in audit(out, against=pruned / "source").findings}
    assert found["kept"] == found["repeat"] == "not checked: the kept experts are unknown"
