"""Layers with different numbers of experts, and plans with statistics: planned, written, warned about, audited."""

import json

import pytest
from calibratable import SHORT, small, texts
from pico import KINDS, write_pico
from pruning import config, obviously_pruned, plan_of, prune, some, tensors

from halfbyte.audit.run import audit
from halfbyte.checkpoint.folder import open_checkpoint
from halfbyte.cli import main as cli
from halfbyte.errors import CheckpointError
from halfbyte.families.model import describe
from halfbyte.plan.prune_plan import read_prune_plan, write_prune_plan

REAP = "kimi-k2.6-nvfp4-reap192"
UNEVEN = {1: (1, 4, 6), 2: (0, 2, 3, 5, 7)}
LIST = "num_routed_experts_per_layer"


def run(*argv):
    return cli.run([str(argument) for argument in argv])


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    root = tmp_path_factory.mktemp("spread")
    source = small(root / "source", "int4-k2.6", experts=8, layers=4)
    data = texts(root / "texts.jsonl")
    words = ["-r", REAP, "--data", f"news={data}", "--samples", 6, "--set", SHORT]
    assert run("calibrate", source, *words, "-o", root / "stats") == 0
    return root


@pytest.mark.parametrize("kind", ["int4-k2.6", "nvfp4", "mxfp4_ct", "bf16"])
def test_each_layer_has_its_own_number(tmp_path, kind):
    source, out = write_pico(tmp_path / "source", kind, experts=8), tmp_path / "out"
    result = prune(source, out, UNEVEN)
    assert tensors(out) == obviously_pruned(tensors(source), UNEVEN)
    assert result.write_nbytes == sum(path.stat().st_size for path in out.glob("*.safetensors"))
    before, after = config(source), config(out)
    before.get("text_config", before).update({"n_routed_experts": 5, LIST: [0, 3, 5]})
    assert after == before
    assert KINDS[kind].model_type != "qwen3_moe"
    for found in (audit(out, against=source), audit(out)):
        assert "prune" not in found.failed and "config" not in found.failed and "structure" not in found.failed
    said = next(f.text for f in audit(out, against=source).findings if f.check == "prune")
    assert "8 rows of gate.weight" in said and "max difference 0.0" in said


def test_only_the_layers_that_are_written_are_listed(tmp_path):
    source = write_pico(tmp_path / "source", experts=8, layers=4)
    prune(source, tmp_path / "out", {**UNEVEN, 3: (0, 1)}, layers=3)
    assert config(tmp_path / "out")["text_config"][LIST] == [0, 3, 5]
    assert config(tmp_path / "out")["text_config"]["n_routed_experts"] == 5
    assert "prune" not in audit(tmp_path / "out", against=source).failed


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        (LIST, [0, 5, 3], f"{LIST} in config.json differs from the kept experts per layer in the plan"),
        (LIST, None, f"{LIST} in config.json differs from the kept experts per layer in the plan"),
        ("n_routed_experts", 4, "config.json declares 4 experts, the plan keeps 3 to 5"),
    ],
)
def test_the_audit_compares_the_list(tmp_path, key, value, says):
    source, out = write_pico(tmp_path / "source", experts=8), tmp_path / "out"
    prune(source, out, UNEVEN)
    found = config(out)
    found["text_config"][key] = value
    (out / "config.json").write_text(json.dumps(found))
    (finding,) = [finding for finding in audit(out).findings if finding.check == "prune"]
    assert says in finding.examples


def test_a_list_in_an_even_checkpoint_is_noticed(tmp_path):
    source, out = write_pico(tmp_path / "source", experts=8), tmp_path / "out"
    prune(source, out, some(source, 4))
    found = config(out)
    found["text_config"][LIST] = [0, 4, 3]
    (out / "config.json").write_text(json.dumps(found))
    assert "prune" in audit(out).failed


def test_other_commands_say_that_they_cannot_read_it(tmp_path):
    source = write_pico(tmp_path / "source", experts=8)
    prune(source, tmp_path / "out", UNEVEN)
    with pytest.raises(CheckpointError, match="the layers have 3 to 5 experts, which only audit and diff support"):
        describe(open_checkpoint(tmp_path / "out"))
    assert describe(open_checkpoint(tmp_path / "out"), uneven=True).experts == 5
    assert run("diff", tmp_path / "out", tmp_path / "out") == 0
    found = config(tmp_path / "out")
    found["text_config"][LIST] = [0, 5, 3]
    (tmp_path / "out/config.json").write_text(json.dumps(found))
    with pytest.raises(CheckpointError, match="the list does not match the layers"):
        describe(open_checkpoint(tmp_path / "out"), uneven=True)


def test_spread_keeps_as_many_in_all_and_warns(place, tmp_path, capsys):
    options = ["--keep", 5, "--spread", "--stats", place / "stats"]
    assert run("prune", place / "source", "-o", tmp_path / "plan", *options) == 0
    said = capsys.readouterr()
    assert "stock vLLM and SGLang read one number for all layers and cannot load this" in said.out
    assert "experts per layer drops" in said.err and "5 in every layer would drop" in said.err
    plan = read_prune_plan(tmp_path / "plan")
    counts = plan.counts()
    assert plan.non_uniform and len(set(counts.values())) > 1 and sum(counts.values()) == 3 * 5
    assert run("prune", place / "source", tmp_path / "out", "--loops", 1, *options) == 0
    said = capsys.readouterr().out
    assert "cannot load this" in said
    assert "loops: not measured, the layers have 4 to 6 experts" in said
    assert read_prune_plan(tmp_path / "out/halfbyte/prune-plan.json") == plan
    assert (tmp_path / "out/halfbyte/stats/stats.safetensors").exists()
    assert tensors(tmp_path / "out") == obviously_pruned(tensors(place / "source"), plan.kept())
    assert run("audit", tmp_path / "out", "--against", place / "source") == 0
    assert run("prune", place / "source", tmp_path / "out", "--no-loops", *options) == 0  # again is resuming
    assert run("prune", place / "source", tmp_path / "same", "--no-loops", "--plan", tmp_path / "plan") == 0
    assert tensors(tmp_path / "same") == tensors(tmp_path / "out")


def test_statistics_say_what_an_edited_plan_covers(place, tmp_path, capsys):
    source, stats = place / "source", place / "stats"
    assert run("prune", source, "--keep", 4, "--stats", stats, "-o", tmp_path / "first") == 0
    found = json.loads((tmp_path / "first").read_text())
    best = found["layers"]["2"]["kept"]
    worst = [expert for expert in range(8) if expert not in best]
    found["layers"]["2"]["kept"] = worst
    (tmp_path / "edited").write_text(json.dumps(found))
    capsys.readouterr()
    options = ["--plan", tmp_path / "edited", "--stats", stats]
    assert run("prune", source, tmp_path / "out", "--no-loops", *options) == 0
    said = capsys.readouterr().out
    before, after = (read_prune_plan(p) for p in (tmp_path / "first", tmp_path / "out/halfbyte/prune-plan.json"))
    assert after.kept()[2] == tuple(worst) and after.edited
    covered = [plan.coverage["layers"]["2"]["covered"]["news"] for plan in (before, after)]
    assert covered[0] == 1.0 > covered[1]
    assert before.coverage["layers"]["1"] == after.coverage["layers"]["1"]
    assert f"{covered[1]:.0%} in layer 2" in said
    assert (tmp_path / "out/halfbyte/stats/stats.safetensors").exists()
    assert run("audit", tmp_path / "out", "--against", source) == 0


def test_statistics_say_what_restored_experts_and_lists_cover(place, tmp_path):
    source, stats = place / "source", place / "stats"
    for keep in (4, 6):
        assert run("prune", source, "--keep", keep, "--stats", stats, "-o", tmp_path / f"{keep}") == 0
    options = ["--plan", tmp_path / "4", "--restore", 2, "--stats", stats]
    assert run("prune", source, "-o", tmp_path / "more", *options) == 0
    more, six = read_prune_plan(tmp_path / "more"), read_prune_plan(tmp_path / "6")
    assert more.coverage["domains"] == six.coverage["domains"]
    assert run("prune", source, "--plan", tmp_path / "6", "--keep-list", tmp_path / "list") == 0
    assert run("prune", source, "-o", tmp_path / "back", "--plan", tmp_path / "list", "--stats", stats) == 0
    back = read_prune_plan(tmp_path / "back")
    assert back.kept() == six.kept()
    assert back.coverage["domains"] == six.coverage["domains"] and back.statistics == six.statistics


@pytest.mark.parametrize("form", ["by_layer", "counted", "in_order", "dropped"])
def test_keep_lists_are_written_as_others_publish_them(tmp_path, capsys, form):
    source = write_pico(tmp_path / "source", experts=8)
    write_prune_plan(tmp_path / "plan", plan_of(source, {1: (1, 4, 6, 7), 2: (0, 2, 3, 5)}))
    argv = ["--plan", tmp_path / "plan", "--keep-list", tmp_path / "list", "--form", form]
    assert run("prune", source, *argv) == 0
    expected = {
        "by_layer": {"1": [1, 4, 6, 7], "2": [0, 2, 3, 5]},
        "counted": {"1": {"kept": [1, 4, 6, 7], "keep": 4}, "2": {"kept": [0, 2, 3, 5], "keep": 4}},
        "in_order": [[1, 4, 6, 7], [0, 2, 3, 5]],
        "dropped": {"dropped": {"1": [0, 2, 3, 5], "2": [1, 4, 6, 7]}},
    }
    assert json.loads((tmp_path / "list").read_text()) == expected[form]
    assert len((tmp_path / "list").read_text().splitlines()) == 4  # a line for each layer
    assert f"halfbyte prune {source} OUT --plan {tmp_path / 'list'}" in capsys.readouterr().err
    assert run("prune", source, tmp_path / "out", "--plan", tmp_path / "list", "--no-loops") == 0
    assert read_prune_plan(tmp_path / "out/halfbyte/prune-plan.json").kept() == {1: (1, 4, 6, 7), 2: (0, 2, 3, 5)}


def test_a_keep_list_beside_a_checkpoint(tmp_path):
    source = write_pico(tmp_path / "source", experts=8)
    write_prune_plan(tmp_path / "plan", plan_of(source, some(source, 4)))
    argv = ["--plan", tmp_path / "plan", "--keep-list", tmp_path / "list", "--no-loops"]
    assert run("prune", source, tmp_path / "out", *argv) == 0
    kept = read_prune_plan(tmp_path / "out/halfbyte/prune-plan.json").kept()
    assert json.loads((tmp_path / "list").read_text()) == {str(layer): list(experts) for layer, experts in kept.items()}
