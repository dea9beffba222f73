"""A pruned checkpoint that is rewritten is still recognized as pruned by every command."""

import hashlib
import json
import shutil

import pytest
from calibratable import digests, small
from card_evidence import LOOPS as LOOP_TEST
from pico import write_pico
from pruning import plan_of, prune, some, tensors

from halfbyte.audit.run import audit
from halfbyte.cli import main as cli
from halfbyte.engine.pipeline import quantize
from halfbyte.plan.prune_plan import read_prune_plan, write_prune_plan
from halfbyte.plan.prune_record import read_record
from halfbyte.recipe.load import load_recipe

RECIPE, REAP = "kimi-k2.6-mxfp4-wafer", "kimi-k2.6-nvfp4-reap192"
LOOPS = {**LOOP_TEST, "level": "bad", "flagged": True, "loops": 18, "texts": 32, "short": 3}


def run(*argv):
    return cli.run([str(word) for word in argv])


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """A source, its looping pruned twin, that twin in NVFP4, and a further conversion."""
    root = tmp_path_factory.mktemp("before")
    source = small(root / "source", experts=8)
    write_prune_plan(root / "plan.json", plan_of(source, some(source, 4)))
    assert run("prune", source, root / "pruned", "--plan", root / "plan.json", "--no-loops") == 0
    (root / "pruned/halfbyte/loops.json").write_text(json.dumps(LOOPS))
    assert run("quantize", root / "pruned", root / "two", "-r", "kimi-k2.6-bf16") == 0
    assert run("quantize", root / "two", root / "three", "-r", "kimi-k2.6-bf16") == 0
    return root


@pytest.fixture
def root(built, tmp_path):
    shutil.copytree(built, tmp_path / "all")
    return tmp_path / "all"


@pytest.mark.parametrize("name", ["two", "three"])
def test_every_command_goes_on_to_say_so(root, capsys, name):
    first, out = root / "pruned/halfbyte/prune-plan.json", root / name
    assert (out / "halfbyte/prune-plan.json").read_bytes() == first.read_bytes()
    found = read_record(out)
    assert found.before and found.loops == LOOPS
    assert found.weights == read_record(root / "pruned").weights == read_prune_plan(first).source["weights"]
    assert run("inspect", out) == 0
    said = capsys.readouterr().out
    assert "! pruned in an earlier run: 4 of 8 experts kept in each of 2 layers" in said
    assert "! the pruned model loops in 18 of 32 texts" in said
    findings = {finding.check: finding for finding in audit(out).findings}
    assert findings["prune"].level == "good" and "4 of 8 experts kept in each of 2 layers" in findings["prune"].text
    assert findings["loops"].level == "bad" and "18 of 32 texts loop" in findings["loops"].text
    assert audit(out, against=root / {"two": "pruned", "three": "two"}[name]).failed == ["loops"]


@pytest.mark.parametrize("name", ["pruned", "two", "three"])
def test_it_cannot_be_pruned_again(root, tmp_path, capsys, name):
    word = "the source is already pruned: it keeps 4 of 8 experts per layer"
    options = ["-r", REAP, "--set", "prune.keep=2"]
    for command in (
        ["prune", root / name, tmp_path / "out", "--plan", root / "plan.json"],
        ["quantize", root / name, tmp_path / "out", *options],
        ["plan", root / name, *options, "--no-measure"],
    ):
        assert run(*command) == 2
        assert word in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_the_pruned_one_says_so_itself(root, capsys):
    assert run("inspect", root / "pruned") == 0
    assert "! pruned: 4 of 8 experts kept in each of 2 layers" in capsys.readouterr().out
    assert run("inspect", root / "source") == 0
    assert "pruned" not in capsys.readouterr().out


@pytest.mark.parametrize("damage", ["change", "remove", "other"])
def test_a_changed_record_is_found(root, capsys, damage):
    path = root / "two/halfbyte/prune-plan.json"
    if damage == "remove":
        path.unlink()
    elif damage == "change":
        path.write_text(path.read_text().replace('"edited": false', '"edited": true'))
    else:  # a record of another pruning, sealed as if it were right
        text = path.read_text()
        plan = read_prune_plan(path)
        write_prune_plan(path, plan_of(root / "source", {layer: kept[:3] for layer, kept in plan.kept().items()}))
        sealed = root / "two/halfbyte/plan.json"
        old, new = (hashlib.sha256(raw).hexdigest() for raw in (text.encode(), path.read_bytes()))
        assert old in sealed.read_text()
        sealed.write_text(sealed.read_text().replace(old, new))
    assert "prune" in audit(root / "two").failed
    assert run("inspect", root / "two") == 0
    if damage != "other":
        assert "! the prune plan " in capsys.readouterr().out


def test_the_record_changes_no_byte_and_a_resumed_run_has_it(tmp_path):
    source = write_pico(tmp_path / "source", experts=8)
    prune(source, tmp_path / "pruned", some(source, 4))
    recipe = load_recipe(RECIPE)
    quantize(tmp_path / "pruned", tmp_path / "with", recipe)
    before = digests(tmp_path / "with")
    quantize(tmp_path / "pruned", tmp_path / "with", recipe)
    assert digests(tmp_path / "with") == before
    shutil.rmtree(tmp_path / "pruned/halfbyte")
    quantize(tmp_path / "pruned", tmp_path / "without", recipe)
    assert tensors(tmp_path / "with") == tensors(tmp_path / "without")
    assert read_record(tmp_path / "without") is None


def test_a_shorter_output_of_a_pruned_one(root):
    quantize(root / "pruned", root / "short", load_recipe("kimi-k2.6-bf16"), layers=2)
    findings = {finding.check: finding for finding in audit(root / "short").findings}
    assert findings["prune"].level == "good"
