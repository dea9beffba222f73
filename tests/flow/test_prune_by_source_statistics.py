"""Statistics of a checkpoint can choose the experts of a checkpoint quantized from it."""

import json
import shutil

import pytest
from calibratable import SHORT, small, texts

from halfbyte.cli import main as cli
from halfbyte.plan.prune_plan import read_prune_plan

REAP, MXFP4 = "kimi-k2.6-nvfp4-reap192", "kimi-k2.6-mxfp4-wafer"


def run(*argv):
    return cli.run([str(word) for word in argv])


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("provenance")
    source = small(root / "source", experts=8)
    words = ["-r", REAP, "--data", f"news={texts(root / 'texts.jsonl')}", "--samples", 6, "--set", SHORT]
    assert run("calibrate", source, *words, "-o", root / "stats") == 0
    assert run("quantize", source, root / "out", "-r", MXFP4) == 0
    assert run("prune", source, "--keep", 4, "--stats", root / "stats", "-o", root / "plan.json") == 0
    return root


def test_they_choose_the_same_experts(root, tmp_path, capsys):
    choice = ["--keep", 4, "--stats", root / "stats"]
    assert run("prune", root / "out", tmp_path / "pruned", *choice, "--no-loops") == 0
    assert "! the plan was chosen on other weights" in capsys.readouterr().out
    first, found = read_prune_plan(root / "plan.json"), read_prune_plan(tmp_path / "pruned/halfbyte/prune-plan.json")
    assert found.kept() == first.kept() and found.coverage == first.coverage
    assert found.source["chosen_on"] == first.source and found.source["weights"] != first.source["weights"]
    assert run("audit", tmp_path / "pruned", "--against", root / "out") == 0
    assert run("prune", root / "out", "-o", tmp_path / "plan.json", *choice) == 0
    assert read_prune_plan(tmp_path / "plan.json") == found


@pytest.mark.parametrize("damage", ["no record", "another source", "other shards", "another config"])
def test_what_the_record_does_not_say_is_refused(root, tmp_path, capsys, damage):
    out = tmp_path / "out"
    shutil.copytree(root / "out", out)
    path = out / "halfbyte/plan.json"
    found = json.loads(path.read_text())
    shard = next(iter(found["source"]))
    if damage == "no record":
        path.unlink()
    elif damage == "another source":
        found["source"][shard] = "0" * 16
    elif damage == "other shards":
        found["shards"][next(iter(found["shards"]))] += 8
    else:
        config = json.loads((out / "config.json").read_text())
        config["text_config"]["rope_theta"] = 7.0
        (out / "config.json").write_text(json.dumps(config))
    if damage != "no record":
        path.write_text(json.dumps(found))
    assert run("prune", out, tmp_path / "pruned", "--keep", 4, "--stats", root / "stats", "--no-loops") == 2
    said = capsys.readouterr().err
    if damage == "another config":
        assert "measured with another config.json" in said
    else:
        assert "these statistics were measured on other weights" in said and "--plan FILE" in said
    assert not (tmp_path / "pruned").exists()


def test_scales_rest_on_the_weights_themselves(root, tmp_path, capsys):
    """An input scale belongs to the activations of exactly the quantized weights."""
    options = ["-r", "kimi-k2.6-nvfp4-wafer", "--stats", root / "stats"]
    assert run("quantize", root / "out", tmp_path / "again", *options) == 2
    said = capsys.readouterr().err
    assert "these statistics were measured on other weights" in said and "--plan" not in said
