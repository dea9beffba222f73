"""Audits of complete outputs, of a changed plan, of other tools' folders, and the command's output."""

import json

import numpy as np
import pytest
from damage import EVERY, EXPERT, LAYER_1, RECIPES, edit_json, edit_shard, settle
from pico import write_pico

from halfbyte.audit.run import audit, save
from halfbyte.cli import main as cli
from halfbyte.engine.pipeline import quantize
from halfbyte.errors import CheckpointError, UsageError
from halfbyte.recipe.load import load_recipe


@pytest.mark.parametrize("name", [*RECIPES, "modelopt"])
def test_what_a_recipe_makes_passes_every_check(outputs, name):
    found = audit(outputs / name, against=outputs / "source", sample=100)
    assert [(f.check, f.text) for f in found.findings if f.level != "good"] == []
    assert found.checks == EVERY
    alone = audit(outputs / name)
    assert [f.check for f in alone.findings if f.level != "good"] == ["kept", "repeat"]
    assert all(f.level == "note" for f in alone.findings if f.level != "good")


@pytest.mark.parametrize("kind", ["int4-k2-thinking", "fp8-block-k2", "fp8-channel", "spread", "int4-g64"])
def test_other_sources_pass_too(tmp_path, kind):
    source = write_pico(tmp_path / "source", kind)
    decode = [f"roles.{role}=bf16" for role in ("shared_experts", "dense_mlp", "attention") if kind.startswith("fp8")]
    quantize(source, tmp_path / "out", load_recipe("kimi-k2.6-nvfp4a16", decode), layers=2)
    assert audit(tmp_path / "out", against=source, sample=100).failed == []


def test_a_recipe_that_was_changed_is_plan(outputs, copy):
    out = copy("nvfp4a16")
    edit_json(out / "halfbyte" / "plan.json", lambda plan: plan["recipe"].update(shards="5GB"))
    assert audit(out).failed == ["plan"]
    (out / "halfbyte" / "plan.json").write_text("{}")
    assert audit(out).failed == ["plan"]


def test_a_folder_that_others_made_is_audited_as_far_as_that_goes(tmp_path):
    out = write_pico(tmp_path / "theirs")
    found = audit(out)
    assert found.failed == []
    assert {f.check for f in found.findings if f.level == "note"} == {
        "plan",
        "coverage",
        "calibration",
        "kept",
        "repeat",
    }
    assert save(found) is None
    assert not (out / "halfbyte").exists()


def test_another_source_is_the_callers_mistake(outputs, tmp_path):
    other = write_pico(tmp_path / "other", experts=8)
    with pytest.raises(UsageError, match="not the source"):
        audit(outputs / "mxfp4-wafer", against=other)


def test_a_folder_without_weights_is_an_error(tmp_path):
    with pytest.raises(CheckpointError, match="the folder does not exist"):
        audit(tmp_path / "nowhere")
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(CheckpointError, match="no weights"):
        audit(tmp_path)


def test_the_command_shows_a_line_a_check_and_writes_audit_json(outputs, copy, capsys):
    out = copy("nvfp4a16")
    assert cli.run(["audit", str(out), "--against", str(outputs / "source")]) == 0
    printed = capsys.readouterr()
    assert [line.split()[:2] for line in printed.out.splitlines()] == [["✓", name] for name in EVERY]
    saved = json.loads((out / "halfbyte" / "audit.json").read_text())
    assert saved["passed"] is True
    assert saved["versions"]["halfbyte"]
    assert [finding["check"] for finding in saved["findings"]] == EVERY


def test_the_command_says_why_and_how_to_mend_it(copy, capsys):
    out = copy("nvfp4a16")
    data = np.float32(17).tobytes()
    name = f"{EXPERT}.up_proj.weight_global_scale"
    edit_shard(out, LAYER_1, lambda tensors: tensors.update({name: ("F32", (1,), data)}))
    settle(out)
    assert cli.run(["audit", str(out)]) == 1
    printed = capsys.readouterr()
    lines = printed.out.splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith("✗ fused"))
    assert f"{EXPERT}.*.weight_global_scale" in lines[at + 1]
    assert lines[at + 2].split()[0] == "why"
    assert lines[at + 3].split()[0] == "fix"
    assert "✗ 1 of 12 checks failed: fused" in printed.err
    assert json.loads((out / "halfbyte" / "audit.json").read_text())["passed"] is False
    assert cli.run(["audit", "--json", str(out)]) == 1
    assert json.loads(capsys.readouterr().out)["passed"] is False
