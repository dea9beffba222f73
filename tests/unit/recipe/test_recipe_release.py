"""The release block of a recipe: it does not affect the output, errors are named, paths are relative to it."""

import json
from pathlib import Path

import pytest

from halfbyte.checkpoint.folder import open_checkpoint
from halfbyte.engine.pipeline import plan
from halfbyte.errors import RecipeError
from halfbyte.recipe.load import load_recipe, load_release, recipe_names
from halfbyte.recipe.release import Release

ROOT = Path(__file__).parents[3]
WHOLE = (Path(__file__).parent / "whole.yaml").read_text(encoding="utf-8")
DEMO = ROOT / "examples" / "kimi-mini-nvfp4.yaml"
BLOCK = """
release:
  audit: {}
  compare: {data: ["a=../texts/a.jsonl:text", "b=/far/b.txt"]}
  serve: {emulate: true, settings: [max-num-seqs=4]}
  eval: {suite: mini, against: source, data_dir: sets}
  gates: {audit: passed, compare: {max_kl: 0.1}, eval: accept}
"""


def written(tmp_path: Path, block: str) -> Path:
    path = tmp_path / "recipes" / "r.yaml"
    path.parent.mkdir(exist_ok=True)
    path.write_text(WHOLE + block, encoding="utf-8")
    return path


def test_the_block_changes_neither_fingerprint_nor_what_is_decided(tmp_path):
    without, with_block = (load_recipe(written(tmp_path, block)) for block in ("", BLOCK))
    assert without == with_block
    assert without.fingerprint() == with_block.fingerprint()
    assert "release" not in with_block.as_dict()


def test_the_block_is_not_in_the_plan():
    recipe = load_recipe(DEMO)
    cut = DEMO.read_text(encoding="utf-8")
    assert "\nrelease:\n" in cut
    made = plan(open_checkpoint(ROOT / "models" / "kimi-mini"), recipe)
    changed = load_recipe(DEMO, ["release.eval.limit=7", "release.card=null"])
    again = plan(open_checkpoint(ROOT / "models" / "kimi-mini"), changed)
    assert made.fingerprint() == again.fingerprint()
    assert json.dumps(recipe.as_dict()) == json.dumps(changed.as_dict())


def test_paths_begin_at_the_recipes_file(tmp_path, monkeypatch):
    path = written(tmp_path, BLOCK)
    block = load_release(path)
    assert block["compare"]["data"] == [f"a={tmp_path}/texts/a.jsonl:text", "b=/far/b.txt"]
    assert block["eval"]["data_dir"] == f"{tmp_path}/recipes/sets"
    monkeypatch.chdir(tmp_path)
    assert load_release("recipes/r.yaml")["compare"]["data"][0] == "a=texts/a.jsonl:text"


def test_omitted_stages_are_absent(tmp_path):
    assert load_release(written(tmp_path, "")) is None
    block = load_release(written(tmp_path, BLOCK))
    assert block["audit"] == {}
    assert block["serve"] == {"emulate": True, "settings": ["max-num-seqs=4"]}


def test_overrides_reach_the_block(tmp_path):
    path = written(tmp_path, BLOCK)
    assert load_release(path, ["release.eval.limit=9"])["eval"]["limit"] == 9
    assert "compare" not in load_release(path, ["release.compare=null", "release.gates.compare=null"])


REFUSED = [
    ("gates: {audit: passed", "gates: {adit: passed", "unknown key 'adit'", "did you mean 'audit'?"),
    ("  audit: {}\n", "", "the gate 'audit' has no stage that measures it", "add 'release.audit'"),
    ("against: source", "against: nothing", "the gate 'eval' requires a comparison", "set eval.against"),
    ("eval: accept}", "eval: fine}", "'fine' is not a valid value for 'eval'", "use accept or no_regression"),
    ("eval: accept}", "eval: accept, probe_coverage: 0.9}", "the gate 'probe_coverage' has no", "'release.probe'"),
    ("eval: accept}", "eval: accept, probe_coverage: 2}", "2 is not valid for 'probe_coverage'", "up to 1"),
    ("{max_kl: 0.1}", "{}", "this gate has no limits", "add 'max_kl' or 'min_top1'"),
    ("{max_kl: 0.1}", "{max_kl: 0}", "0 is not valid for 'max_kl'", "above 0"),
    ("max-num-seqs=4", "max-num-seqs", "'max-num-seqs' is not a NAME=VALUE pair", "NAME=VALUE"),
    ("emulate: true", "activations: off", "'activations' requires 'emulate'", "remove it, or set emulate"),
    ("emulate: true", "emulate: yes", "'emulate' must be true or false, not 'yes'", "write true or false"),
    ("  gates: {audit: passed, compare: {max_kl: 0.1}, eval: accept}\n", "", "missing key 'gates'", "add 'gates'"),
    ("gates: {audit: passed, compare: {max_kl: 0.1}, eval: accept}", "gates: {}", "no gates declared", "add one"),
    ("suite: mini, ", "", "missing key 'suite'", "add 'suite'"),
]


@pytest.mark.parametrize(("before", "after", "what", "fix"), REFUSED)
def test_release_mistakes_are_named(tmp_path, before, after, what, fix):
    assert before in BLOCK
    path = written(tmp_path, BLOCK.replace(before, after))
    for load in (load_recipe, load_release):
        with pytest.raises(RecipeError) as caught:
            load(path)
        assert caught.value.what.startswith(what)
        assert fix in caught.value.fix
        assert "release" in caught.value.where


def test_every_key_is_described():
    parts = [Release]
    for part in parts:
        for field in part.model_fields.values():
            assert field.description
            parts += [one for one in getattr(field.annotation, "__args__", ()) if hasattr(one, "model_fields")]
    assert len(parts) > 10


@pytest.mark.parametrize("name", [name for name in recipe_names() if load_release(name)])
def test_shipped_blocks_name_what_there_is(name):
    from halfbyte.evaluate.suites import load_suite
    from halfbyte.probe.profiles import load_profile
    from halfbyte.serve.gpus import parse_gpus

    block = load_release(name)
    assert {"audit", "probe", "eval", "bench"} <= block["gates"].keys()
    assert block["provenance"] and block["card"] and block["report"]  # what `publish` asks for after ACCEPT
    parse_gpus(block["serve"]["gpus"])
    assert load_suite(block["eval"]["suite"])
    assert load_profile(block["probe"]["profile"])


def test_a_card_of_another_repository_than_the_published_one_is_refused():
    said = ["release.card={name: kimi-mini-NVFP4, repo: me/other}", "release.publish={repo: me/kimi-mini-NVFP4}"]
    with pytest.raises(RecipeError, match="the card and 'publish' name different repositories"):
        load_release(DEMO, said)
    block = load_release(DEMO, said[:1])
    assert block is not None and block["card"] == {"name": "kimi-mini-NVFP4", "repo": "me/other"}
