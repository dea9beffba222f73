"""Invalid input of prune: each a clear error, and nothing is written."""

import json

import pytest
from calibratable import SHORT, small, texts
from pico import write_pico
from pruning import plan_of, prune, some

from halfbyte.checkpoint.folder import open_checkpoint
from halfbyte.checkpoint.identity import identity
from halfbyte.cli import main as cli
from halfbyte.families.model import describe
from halfbyte.plan.prune_plan import read_prune_plan, write_prune_plan
from halfbyte.prune.plan_source import describe_source

REAP = "kimi-k2.6-nvfp4-reap192"


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A source, its statistics, and a plan for it."""
    root = tmp_path_factory.mktemp("bad")
    source = small(root / "source", experts=8)
    data = texts(root / "texts.jsonl")
    words = ["-r", REAP, "--data", f"news={data}", "--samples", 6, "--set", SHORT]
    assert run("calibrate", source, *words, "-o", root / "stats") == 0
    assert run("calibrate", source, *words, "--layers", 2, "-o", root / "two-layers") == 0
    write_prune_plan(root / "plan.json", plan_of(source, some(source, 4)))
    bare = {str(layer): list(experts) for layer, experts in some(source, 4).items()}
    (root / "kind.json").write_text(json.dumps({"kind": "something else", "keep": bare}))
    small(root / "other", experts=8, seed=1)
    small(root / "grouped", experts=8)
    path = root / "grouped/config.json"
    found = json.loads(path.read_text())
    found["text_config"] |= {"n_group": 4, "topk_group": 2}
    path.write_text(json.dumps(found))
    prune(source, root / "pruned", some(source, 6))
    return root


def run(*argv):
    quiet = ["--no-loops"] if argv[0] == "prune" else []  # see test_prune_loops.py
    return cli.run([str(argument) for argument in argv] + quiet)


STATS = ("--stats", "{}/stats")
PLAN = ("--plan", "{}/plan.json")


@pytest.mark.parametrize(
    ("source", "options", "what", "fix"),
    [
        ("source", ("--keep", "1", *STATS), "1 experts are too few: each token is routed to 2", "keep 2 or more"),
        ("source", ("--keep", "9", *STATS), "cannot keep 9 of 8 experts", "keep 7 or fewer"),
        ("source", ("--keep", "8", *STATS), "keeping 8 of 8 experts per layer drops none", "keep 7 or fewer"),
        (
            "source",
            ("--keep", "8", "--spread", *STATS),
            "keeping 8 of 8 experts per layer drops none",
            "keep 7 or fewer",
        ),
        ("source", ("--drop", "5%", *STATS), "5.00% of 8 experts is less than one", "drop 12.5% or more"),
        ("source", ("--keep", "4", "--layers", "99", *STATS), "99 layers requested, but the model has 3", "pass 3"),
        ("source", ("--layers", "4", *PLAN), "4 layers requested, but the model has 3", "pass 3 or fewer"),
        ("grouped", ("--keep", "6", *STATS), "6 experts cannot be split into 4 equal groups", "needs all"),
        ("grouped", ("--keep", "4", *STATS), "1 expert in a group is too few", "needs all"),
        ("source", ("--keep", "4", "--drop", "50%", *STATS), "--keep and --drop cannot be combined", "one of"),
        ("source", STATS, "the number of experts to keep is not specified", "--keep 192"),
        ("source", ("--keep", "4"), "no option selects the experts to keep", "--stats"),
        ("source", ("--drop", "half", *STATS), "'half' is not a valid fraction", "25%"),
        ("source", ("--drop", "100%", *STATS), "'100%' is not a valid fraction", "25%"),
        ("source", ("--blend", "news", "--keep", "4", *STATS), "'news' is not of the form DOMAIN=WEIGHT", "code=2"),
        (
            "source",
            ("--blend", "news=1e308", "--keep", "4", *STATS),
            "invalid weight '1e308' for 'news'",
            "0 to 1000000",
        ),
        ("source", ("--blend", "news=inf", "--keep", "4", *STATS), "invalid weight 'inf' for 'news'", "0 to 1000000"),
        ("source", ("--blend", "news=nan", "--keep", "4", *STATS), "invalid weight 'nan' for 'news'", "0 to 1000000"),
        ("source", ("--blend", "news=1,news=2", "--keep", "4", *STATS), "duplicate domain 'news'", "one weight"),
        ("source", ("--keep", "4", *STATS, *PLAN), "--keep cannot be combined with --plan", "remove one"),
        ("other", (*STATS, *PLAN), "these statistics were measured on other weights", "halfbyte calibrate"),
        ("source", ("--stats", "{}/two-layers", *PLAN), "these statistics lack layer 2", "all layers"),
        ("source", ("--spread", *PLAN), "--spread cannot be combined with --plan", "remove one"),
        ("source", ("--keep", "4", "--spread"), "no option selects the experts to keep", "--stats"),
        ("source", ("--keep", "4", "--spread", "--data", "a=b.txt"), "--spread compares layers", "--stats STATS"),
        ("source", ("--keep", "4", *STATS, "--form", "counted"), "--form requires --keep-list", "remove --form"),
        ("source", ("--keep", "4", *STATS, "--keep-list", "{}/no/x"), "the folder does not exist", "create it"),
        ("source", ("--keep", "4", *STATS, "--restore", "1"), "--restore requires --plan", "--plan"),
        (
            "source",
            ("--keep", "4", *STATS, "-o", "{}/x"),
            "--plan-only cannot be combined with OUT: it writes no checkpoint",
            "remove one",
        ),
        ("source", ("--keep", "4", *STATS, "--samples", "3"), "--samples requires --data", "remove --samples"),
        ("source", ("--keep", "4", *STATS, "--data", "a=b.txt"), "--stats and --data cannot be combined", "own data"),
        ("other", ("--keep", "4", *STATS), "these statistics were measured on other weights", "halfbyte calibrate"),
        ("source", ("--keep", "4", "--stats", "{}/two-layers"), "these statistics lack layer 2", "all layers"),
        ("pruned", ("--keep", "4", *STATS), "the source is already pruned", "keep fewer"),
        ("pruned", PLAN, "the source is already pruned", "keep fewer"),
        ("source", ("--plan", "{}/texts.jsonl"), "this is not JSON", "another file"),
        ("source", ("--plan", "{}/kind.json"), "this is not a halfbyte prune plan", "pass a prune-plan.json"),
    ],
)
def test_options_and_statistics(place, tmp_path, capsys, source, options, what, fix):
    out = tmp_path / "out"
    assert run("prune", place / source, out, *(option.format(place) for option in options)) == 2
    said = capsys.readouterr().err
    assert what in said and fix in said
    assert not out.exists()


def edited(place, tmp_path, change):
    found = json.loads((place / "plan.json").read_text())
    change(found)
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(found))
    return path


def kept(layer, experts):
    def change(plan):
        plan["layers"][layer] |= {"kept": experts, "count": len(experts)}

    return change


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (kept("1", [0, 1, 2, 8]), "unknown expert 8"),
        (kept("1", [0, 1, 1, 2]), "duplicate expert 1"),
        (kept("1", [3, 2, 1, 0]), "not in ascending order"),
        (kept("1", [0, 1, 2]), "layer 1 keeps 3 experts and layer 2 keeps 4"),
        (lambda plan: plan["layers"].pop("2"), "the plan has no layer 2"),
        (lambda plan: plan["layers"].update({"0": plan["layers"]["1"]}), "no routed experts in layer 0"),
        (lambda plan: plan["router"].update(experts=16), "the plan is for 16 experts per layer, but the source has 8"),
    ],
)
def test_plans(place, tmp_path, capsys, change, what):
    out = tmp_path / "out"
    assert run("prune", place / "source", out, "--plan", edited(place, tmp_path, change)) == 2
    assert what in capsys.readouterr().err
    assert not out.exists()


def test_an_edited_plan_is_applied_and_says_so(place, tmp_path, capsys):
    plan = edited(place, tmp_path, lambda plan: (kept("1", [0, 1, 2, 3])(plan), kept("2", [4, 5, 6, 7])(plan)))
    assert run("prune", place / "source", tmp_path / "out", "--plan", plan) == 0
    assert "edited by hand" in capsys.readouterr().out
    assert run("audit", tmp_path / "out", "--against", place / "source") == 0


def test_a_plan_of_other_weights_is_applied_with_a_word(place, tmp_path, capsys):
    """Statistics of a release can choose the experts of checkpoints derived from it."""
    options = ["--keep", 4, "--stats", place / "stats", "-o", tmp_path / "plan"]
    assert run("prune", place / "source", *options) == 0
    word = "the plan was chosen on other weights"
    assert word not in capsys.readouterr().out
    assert run("prune", place / "other", tmp_path / "out", "--plan", tmp_path / "plan", "-q") == 0
    assert f"! {word}" in capsys.readouterr().out
    first, then = read_prune_plan(tmp_path / "plan"), tmp_path / "out/halfbyte/prune-plan.json"
    other = open_checkpoint(place / "other")
    here = describe_source(other, identity(other))
    assert here["weights"] != first.source["weights"]
    assert read_prune_plan(then).source == {**here, "chosen_on": first.source}
    for folder, said in (("other", True), ("source", False)):
        assert run("prune", place / folder, "-o", tmp_path / "again", "--plan", then, "--json") == 0
        advice = json.loads(capsys.readouterr().out)["advice"]
        assert any(one["level"] == "note" and one["text"].startswith(word) for one in advice) == said
    assert read_prune_plan(tmp_path / "again").source == first.source


def test_a_recipe_that_prunes_by_given_statistics_needs_them(place, tmp_path, capsys):
    options = ["-r", REAP, "--set", "prune.keep=4", "--set", "prune.statistics=file"]
    recipe = tmp_path / "recipe.yaml"
    from halfbyte.recipe.load import recipe_text

    text = recipe_text(REAP)
    start, end = text.index("calibrate:\n"), text.index("shards: layers")
    recipe.write_text(text[:start] + text[end:])
    options[1] = recipe
    assert run("quantize", place / "source", tmp_path / "out", *options) == 2
    assert "needs existing statistics" in capsys.readouterr().err
    assert run("quantize", place / "source", tmp_path / "out", *options, "--stats", place / "stats") == 0


def test_groups_keep_as_many_experts_each(tmp_path):
    source = write_pico(tmp_path / "source", experts=8)
    found = json.loads((source / "config.json").read_text())
    found["text_config"] |= {"n_group": 2, "topk_group": 1}
    (source / "config.json").write_text(json.dumps(found))
    prune(source, tmp_path / "out", {1: (0, 3, 5, 6), 2: (1, 2, 4, 7)})
    found["text_config"]["n_routed_experts"] = 4
    assert json.loads((tmp_path / "out/config.json").read_text()) == found
    with pytest.raises(Exception, match="the groups keep 3, 1 experts"):
        prune(source, tmp_path / "bad", {1: (0, 1, 2, 5), 2: (1, 2, 4, 7)})
    assert not (tmp_path / "bad").exists()


def test_a_plan_of_the_whole_is_carried_out_with_statistics(place, tmp_path):
    """`plan -o` cannot know the kept experts; `quantize --plan` can."""
    assert (
        run("plan", place / "source", "-r", REAP, "--set", "prune.keep=4", "-o", tmp_path / "plan", "--no-measure") == 0
    )
    options = ["--plan", tmp_path / "plan", "--stats", place / "stats"]
    assert run("quantize", place / "source", tmp_path / "out", *options) == 0
    assert run("quantize", place / "source", tmp_path / "out", *options) == 0
    assert run("audit", tmp_path / "out", "--against", place / "source") == 0


def test_a_layer_for_multi_token_prediction_needs_a_choice_too(tmp_path):
    """Engines read one expert count for it too; without statistics it can only be excluded."""
    source = write_pico(tmp_path / "source", experts=8, layers=4)
    path = source / "config.json"
    found = json.loads(path.read_text())
    found["text_config"] |= {"num_hidden_layers": 3, "num_nextn_predict_layers": 1}
    path.write_text(json.dumps(found))
    chosen = some(source, 4)
    prune(source, tmp_path / "all", chosen)
    del chosen[3]
    with pytest.raises(Exception, match=r"layer 3 is a multi-token prediction layer.*--layers 3"):
        prune(source, tmp_path / "out", chosen)
    prune(source, tmp_path / "out", chosen, layers=3)


ONE_PASS = "-r kimi-k2.6-nvfp4-nvidia --set prune.method=reap --set prune.statistics=calibrate --set prune.keep=4"


def test_int4_stays_int4_and_the_way_to_nvfp4_is_one_that_works(place, tmp_path, capsys):
    word = (
        f"! the experts stay INT4, as stored in the source; for NVFP4 in one pass: halfbyte quantize SRC OUT {ONE_PASS}"
    )
    stats, reap = ["--stats", place / "stats"], ["-r", REAP, "--set", "prune.keep=4"]
    for command in (
        ["prune", place / "source", tmp_path / "pruned", "--keep", 4, *stats],
        ["prune", place / "source", "-o", tmp_path / "plan", "--keep", 4, *stats],
        ["quantize", place / "source", tmp_path / "recipe", *reap, *stats],
        ["plan", place / "source", *reap, "--no-measure"],
    ):
        assert run(*command) == 0
        assert word in capsys.readouterr().out.splitlines()
        if command[0] != "quantize":  # a finished run says the same again, and JSON says it too
            assert run(*command, "--json") == 0
            assert "stay INT4" in json.loads(capsys.readouterr().out)["advice"][-1]["text"]
    assert run("quantize", place / "source", tmp_path / "nvfp4", *ONE_PASS.split(), *stats) == 0
    assert "stay INT4" not in capsys.readouterr().out
    assert {
        linear.format for linear in describe(open_checkpoint(tmp_path / "nvfp4")).linears.values() if linear.expert
    } == {"nvfp4"}
    options = ["--plan", tmp_path / "plan"]
    bf16 = write_pico(tmp_path / "bf16", "bf16", experts=8)
    assert run("prune", bf16, tmp_path / "other", *options) == 0
    assert "stay INT4" not in capsys.readouterr().out


def test_more_layers_than_there_are(place, tmp_path, capsys):
    recipe, out = ["-r", REAP, "--set", "prune.keep=4"], tmp_path / "out"
    data = ["--data", f"news={place / 'texts.jsonl'}", "--samples", 6]
    for command in (
        ["plan", place / "source", *recipe, "--no-measure"],
        ["quantize", place / "source", out, *recipe, *data],
        ["calibrate", place / "source", *recipe, *data, "-o", out],
        ["prune", place / "source", "-o", out, *(word.format(place) for word in STATS), "--keep", 4],
    ):
        assert run(*command, "--layers", 99) == 2
        assert "99 layers requested, but the model has 3" in capsys.readouterr().err
        assert not out.exists()


def test_a_recipe_that_would_keep_every_expert(place, tmp_path, capsys):
    for keep, what in ((8, "keeping 8 of 8 experts per layer drops none"), (192, "cannot keep 192 of 8 experts")):
        options = ["-r", REAP, "--set", f"prune.keep={keep}", "--data", f"news={place / 'texts.jsonl'}"]
        for command in (["plan", place / "source", "--no-measure"], ["quantize", place / "source", tmp_path / "out"]):
            assert run(*command, *options) == 2
            assert what in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
