"""diff of a pruned checkpoint and its source: experts by original number, routers by kept rows."""

import json
import shutil

import pytest
from pico import KINDS, write_pico, write_shards
from pruning import prune, some
from safetensors.torch import load_file

from halfbyte.audit.diff import diff
from halfbyte.checkpoint.folder import open_checkpoint
from halfbyte.cli import main as cli
from halfbyte.engine.pipeline import quantize
from halfbyte.families.model import describe
from halfbyte.recipe.load import load_recipe


def run(*argv):
    return cli.run([str(word) for word in argv])


@pytest.mark.parametrize("kind", KINDS)
def test_all_that_stayed_is_the_same_in_every_format(tmp_path, kind):
    source, out = write_pico(tmp_path / "source", kind, experts=8), tmp_path / "out"
    prune(source, out, some(source, 4))
    for found, pruned in ((diff(source, out), "B"), (diff(out, source), "A")):
        assert found.kept_equal and not found.equal and found.same_value == 0
        assert found.renumbered.pruned == pruned
    model = describe(open_checkpoint(out))
    assert found.same_bytes >= len(model.linears) + len(model.plain)


def test_it_says_so(tmp_path, capsys):
    source, out = write_pico(tmp_path / "source", experts=8), tmp_path / "out"
    prune(source, out, some(source, 3))
    assert run("diff", source, out) == 0
    said = capsys.readouterr()
    line = "B: 5 of 8 experts dropped, 3 renumbered in each of 2 layers; all kept bytes equal"
    assert line in said.out
    assert "plan            recorded in B" in said.out
    assert "config          1 by the plan: text_config.n_routed_experts" in said.out
    assert run("diff", out, source, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["renumbered"] == {"pruned": "A", "experts": 8, "kept": {"1": 3, "2": 3}, "kept_equal": True}
    assert (found["equal"], found["different"], found["only_in_a"], found["only_in_b"]) == (False, [], [], [])


@pytest.mark.parametrize("what", ["gate.weight", "e_score_correction_bias", "experts.2.up_proj.weight_packed"])
def test_a_changed_value_is_found_by_its_name(tmp_path, what):
    source, out = write_pico(tmp_path / "source", experts=8), tmp_path / "out"
    prune(source, out, some(source, 4))
    shards = {path.name: load_file(path) for path in sorted(out.glob("*.safetensors"))}
    changed = None
    for tensors in shards.values():
        for name, tensor in tensors.items():
            if f".layers.2.mlp.{what}" in name or (what in name and ".layers.2.mlp.gate." in name):
                tensor.view(-1)[-1] += 1
                changed = name
    assert changed is not None
    write_shards(out, shards)
    found = diff(source, out)
    assert [one.name for one in found.different] == [changed.removesuffix(".weight_packed")]
    assert not found.kept_equal and "the kept tensors differ" in found.lines()[0][1]
    assert found.verdict() == "1 difference not explained by the plan of B"
    assert changed.removesuffix(".weight_packed") in found.explained.unexplained[0]


def test_one_that_was_written_anew_and_layers_that_differ(tmp_path):
    source, out = write_pico(tmp_path / "source", experts=8), tmp_path / "out"
    prune(source, out, {1: (0, 2, 5), 2: (1, 3, 4, 7)})
    assert (
        "3 to 4 of 8 experts kept and renumbered in each of 2 layers; all kept bytes equal"
        in diff(source, out).lines()[0][1]
    )
    prune(source, tmp_path / "even", some(source, 4))
    quantize(tmp_path / "even", tmp_path / "bf16", load_recipe("kimi-k2.6-bf16"))
    found = diff(source, tmp_path / "bf16")
    assert found.kept_equal and found.same_value > 0 and "all kept values equal" in found.lines()[0][1]
    assert diff(tmp_path / "even", tmp_path / "bf16").equal


def test_a_record_of_other_weights_says_nothing(tmp_path):
    source, out = write_pico(tmp_path / "source", experts=8), tmp_path / "out"
    prune(source, out, some(source, 4))
    other = write_pico(tmp_path / "other", experts=8, seed=1)
    found = diff(other, out)
    assert found.renumbered is None and found.only_a and found.different


def test_a_pruned_copy_without_its_record_is_told_by_its_routers(tmp_path):
    source, out = write_pico(tmp_path / "source", experts=8), tmp_path / "out"
    prune(source, out, some(source, 4))
    shutil.rmtree(out / "halfbyte")
    found = diff(source, out)
    assert found.kept_equal and found.planned
    assert found.renumbered.pruned == "B"
    assert "4 of 8 experts kept" in found.explained.plan
