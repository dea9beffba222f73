"""The Python API: all forms of sources and recipes, result types, and HalfbyteErrors."""

import dataclasses
import inspect as python_inspect
import json
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest
from pruning import plan_of, some

import halfbyte
from halfbyte import api
from halfbyte.checkpoint.folder import open_checkpoint
from halfbyte.errors import CheckpointError, HalfbyteError, MachineError, RecipeError, UsageError
from halfbyte.plan.prune_plan import write_prune_plan
from halfbyte.recipe.load import load_recipe, recipe_text

RECIPE = "kimi-k2.6-mxfp4-wafer"
FUNCTIONS = ("audit", "compare", "example", "inspect", "plan", "prune", "quantize")
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def source(pristine_kinds):
    return pristine_kinds("int4-k2.6")


def shards(folder):
    return {path.name: path.read_bytes() for path in Path(folder).glob("*.safetensors")}


@pytest.fixture(scope="module")
def made(source, tmp_path_factory):
    out = tmp_path_factory.mktemp("made") / "out"
    api.quantize(source, out, RECIPE)
    return out


def test_the_call_of_the_issue(source, made, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "src").symlink_to(source)
    result = halfbyte.quantize("src", "out", RECIPE)
    assert (result.out, result.resumed) == (Path("out"), 0)
    assert shards("out") == shards(made)
    assert halfbyte.quantize("src", "out", RECIPE).resumed == result.shards  # the same call resumes


@pytest.mark.parametrize("form", ["path", "file", "yaml", "object", "checkpoint", "address"])
def test_every_form_of_source_and_recipe_makes_the_same_plan(source, tmp_path, form, serve_hub):
    file = tmp_path / "own.yaml"
    file.write_text(recipe_text(RECIPE))
    if form == "address":
        serve_hub(source)
    given = {
        "path": (Path(source), RECIPE),
        "file": (str(source), str(file)),
        "yaml": (source, file),
        "object": (source, load_recipe(RECIPE)),
        "checkpoint": (open_checkpoint(source), RECIPE),
        "address": ("hf://org/name", RECIPE),
    }[form]
    assert api.plan(*given).fingerprint() == api.plan(source, RECIPE).fingerprint()
    assert api.inspect(given[0]).parameters == api.inspect(source).parameters


def test_a_remote_source_is_quantized_through_the_cache(source, made, tmp_path, serve_hub):
    serve_hub(source)
    api.quantize("hf://org/name", tmp_path / "out", RECIPE, cache="1GB", cache_dir=tmp_path / "cache")
    assert shards(tmp_path / "out") == shards(made)


def test_options_mean_what_they_mean_on_the_command_line(source, tmp_path):
    whole, some_layers = api.plan(source, RECIPE), api.plan(source, RECIPE, layers=2)
    assert some_layers.write_nbytes < whole.write_nbytes
    other = api.plan(source, RECIPE, overrides=["shards=1GB"])
    assert other.recipe.shards == "1GB"
    file = tmp_path / "plan.json"
    file.write_text(json.dumps(whole.as_dict()))
    assert api.quantize(source, tmp_path / "out", plan=file).fingerprint == whole.fingerprint()


def test_the_results_are_dataclasses(source, made):
    audited = api.audit(made, against=source)
    assert not audited.failed and (made / "halfbyte" / "audit.json").is_file()
    found = [api.inspect(source), api.plan(source, RECIPE), audited, api.quantize(source, made, RECIPE)]
    assert all(dataclasses.is_dataclass(one) for one in found)
    assert api.inspect(api.example("kimi-k2.6")).parameters > 10**12


def test_an_audit_is_kept_only_where_that_is_wanted(source, tmp_path):
    api.quantize(source, tmp_path / "out", RECIPE)
    assert api.audit(str(tmp_path / "out"), save=False).checks
    assert not (tmp_path / "out" / "halfbyte" / "audit.json").exists()


def test_an_audit_that_fails_is_a_value_and_no_exception(source, tmp_path):
    api.quantize(source, tmp_path / "out", RECIPE)
    shard = max((tmp_path / "out").glob("*.safetensors"))
    raw = bytearray(shard.read_bytes())
    raw[-1] ^= 1
    shard.write_bytes(raw)
    assert "bytes" in api.audit(tmp_path / "out", against=str(source)).failed


def test_pruning_by_a_plan(source, tmp_path):
    kept = some(source, 2)
    write_prune_plan(tmp_path / "prune-plan.json", plan_of(source, kept))
    result = api.prune(str(source), str(tmp_path / "out"), plan=str(tmp_path / "prune-plan.json"), loops=False)
    assert result.pruned is not None and result.pruned.kept() == kept and result.loops is None
    assert api.inspect(tmp_path / "out").experts == 2


MINI = ROOT / "models" / "kimi-mini"
WORDS = ROOT / "evals" / "word_problems" / "test.jsonl"


def test_comparing_with_itself_has_no_distance():
    seen = []
    data = {"word-problems": f"{WORDS}:question,answer"}
    report = api.compare(str(MINI), MINI, data, samples=2, length=32, progress=seen.append)
    assert report.total.kl.value == 0 and report.total.top1.value == 1 and seen
    again = api.compare(MINI, MINI, f"word-problems={WORDS}:question,answer", samples=2, length=32)
    assert again.fingerprint == report.fingerprint


@pytest.mark.parametrize(
    ("call", "kind", "words"),
    [
        (lambda s, t: api.quantize(s, t / "o", "kimi-k2.6-mxfp4-wafr"), RecipeError, "kimi-k2.6-mxfp4-wafr"),
        (lambda s, t: api.quantize(s, t / "o"), UsageError, "no recipe or plan specified"),
        (
            lambda s, t: api.quantize(s, t / "o", RECIPE, plan="plan.json"),
            UsageError,
            "recipe and plan cannot be combined",
        ),
        (lambda s, t: api.quantize(s, t / "o", 7), UsageError, "'recipe' is int"),
        (lambda s, t: api.quantize(7, t / "o", RECIPE), UsageError, "'source' is int"),
        (lambda s, t: api.quantize(s, "hf://org/name", RECIPE), UsageError, "must be a local folder"),
        (lambda s, t: api.quantize(s, s / "o", RECIPE), UsageError, "inside the source"),
        (lambda s, t: api.quantize(s, t / "o", RECIPE, threads=0), UsageError, "'threads' is 0"),
        (lambda s, t: api.quantize(s, t / "o", RECIPE, evict=True), UsageError, "evict requires push"),
        (lambda s, t: api.quantize(s, t / "o", RECIPE, cache="1GB"), UsageError, "a local source needs no cache"),
        (lambda s, t: api.plan(s, load_recipe(RECIPE), overrides=["shards=1GB"]), UsageError, "dataclasses.replace"),
        (lambda s, t: api.plan(s, RECIPE, layers=0), UsageError, "'layers' is 0"),
        (lambda s, t: api.plan(t / "nothing", RECIPE), HalfbyteError, "nothing"),
        (lambda s, t: api.plan(t, RECIPE), CheckpointError, str),
        (lambda s, t: api.inspect(Path("hf://org/name")), UsageError, "pass the address as a str"),
        (lambda s, t: api.inspect("ftp2://org/name"), HalfbyteError, str),
        (lambda s, t: api.audit("hf://org/name"), UsageError, "must be a local folder"),
        (lambda s, t: api.audit(t / "nothing"), HalfbyteError, str),
        (lambda s, t: api.audit(s, engine="sglang"), UsageError, "'engine' is 'sglang'"),
        (lambda s, t: api.compare(s, s, []), UsageError, "no data"),
        (lambda s, t: api.compare(s, s, "x=y.jsonl", dtype="float16"), UsageError, "'dtype' is 'float16'"),
        (lambda s, t: api.compare(s, s, "x=y.jsonl", length=1), UsageError, "'length' is 1"),
        (lambda s, t: api.prune(s, t / "o", keep=2), UsageError, "no option selects the experts to keep"),
        (lambda s, t: api.prune(s, t / "o", keep=2, method="best", stats=t), HalfbyteError, "best"),
        (lambda s, t: api.quantize(s, Path("/proc/o"), RECIPE), MachineError, str),
        (lambda s, t: api.plan(s, RECIPE, layers="2"), UsageError, "'layers' is '2', which is str"),
        (lambda s, t: api.plan(s, RECIPE, layers=True), UsageError, "'layers' is True, which is bool"),
        (lambda s, t: api.plan(s, RECIPE, layers=2.0), UsageError, "'layers' is 2.0, which is float"),
        (lambda s, t: api.quantize(s, t / "o", RECIPE, threads="two"), UsageError, "'threads' is 'two', which is str"),
        (lambda s, t: api.quantize(s, t / "o", RECIPE, device=0), UsageError, "'device' is 0, which is int"),
        (lambda s, t: api.plan(s, RECIPE, data=[7]), UsageError, "'data' is int"),
        (lambda s, t: api.plan(s, RECIPE, data=7), UsageError, "'data' is int"),
        (lambda s, t: api.plan(s, RECIPE, overrides=7), UsageError, "'overrides' is int"),
        (lambda s, t: api.plan(s, RECIPE, overrides=[("shards", "5GB")]), UsageError, "which is tuple"),
        (lambda s, t: api.plan(s, RECIPE, overrides={"shards": t}), UsageError, "'shards' cannot be"),
        (lambda s, t: api.inspect("moonshotai/Kimi-K2.6"), CheckpointError, "use hf://moonshotai/Kimi-K2.6"),
        (lambda s, t: api.plan("moonshotai/Kimi-K2.6", RECIPE), CheckpointError, "use hf://moonshotai/Kimi-K2.6"),
        (lambda s, t: api.inspect(""), UsageError, "'source' is empty"),
        (lambda s, t: api.quantize(s, "", RECIPE), UsageError, "'out' is empty"),
    ],
)
def test_what_is_wrong_is_a_halfbyte_error_before_anything_is_written(source, tmp_path, call, kind, words):
    with pytest.raises(kind) as caught:
        call(source, tmp_path)
    assert isinstance(words, type) or words in str(caught.value)
    assert not (tmp_path / "o").exists()


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (
            api.quantize,
            "no recipe or plan specified; where: api.quantize; fix: pass recipe=RECIPE or plan=FILE",
        ),
        (
            lambda s, o: api.quantize(s, o, plan="p.json", overrides="shards=5GB"),
            "overrides cannot be combined with plan, which fixes it; where: overrides; fix: omit it, or create a new "
            "plan: halfbyte plan SRC -r RECIPE --set ... -o FILE",  # a command to type keeps its options
        ),
        (
            lambda s, o: api.plan(s, RECIPE, overrides="shards"),
            "'shards' is not a key=value pair; where: overrides shards; "
            "fix: write key=value, as in quantize.scales=mse",
        ),
        (
            lambda s, o: api.plan(s, RECIPE, overrides={"shard": "5GB"}),
            "unknown key 'shard'; where: overrides='shard=\"5GB\"'; fix: did you mean 'shards'?",
        ),
        (
            lambda s, o: api.plan(s, RECIPE, samples=3),
            "samples requires data; fix: pass data too, or change the recipe's shares",
        ),
        (
            lambda s, o: api.prune(s, o, plan="p.json", keep=2),
            "keep cannot be combined with plan, which already determines it; where: keep; fix: remove one of them",
        ),
        (
            lambda s, o: api.prune(s, o, stats=s),
            "the number of experts to keep is not specified; where: api.prune; fix: pass one of keep=192 and drop=25%",
        ),
        (
            lambda s, o: api.quantize(s, o, RECIPE, evict=True),
            "evict requires push; where: evict; fix: add push=REPO",
        ),
    ],
)
def test_errors_name_the_arguments_of_the_api_and_no_options(source, tmp_path, call, said):
    with pytest.raises(HalfbyteError) as caught:
        call(source, tmp_path / "o")
    assert str(caught.value) == said


def test_one_override_or_a_dict_of_them(source):
    for given in ("shards=5GB", {"shards": "5GB"}, ["shards=5GB"], ("shards=5GB",)):
        assert api.plan(source, RECIPE, overrides=given).recipe.shards == "5GB"
    changed = api.plan(source, RECIPE, overrides={"shards": "5GB", "description": "Ours: 4-bit"}).recipe
    assert (changed.shards, changed.description) == ("5GB", "Ours: 4-bit")


def test_data_may_be_paths(source, tmp_path):
    file = tmp_path / "news.jsonl"
    file.write_text('{"text": "one"}\n')
    recipe = "kimi-k2.6-nvfp4-nvidia"
    for given in (file, [file], str(file), {"news": file}):
        (found,) = api.plan(source, recipe, data=given, samples=4).recipe.calibrate.datasets
        assert (found.domain, found.source) == ("news", str(file))


def test_the_name_of_a_recipe_may_be_a_path(source, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert api.plan(source, Path(RECIPE)).recipe.name == api.plan(source, RECIPE).recipe.name
    Path(RECIPE).write_text(recipe_text(RECIPE).replace("shards: layers", "shards: 5GB"))
    assert api.plan(source, Path(RECIPE)).recipe == load_recipe(Path(RECIPE))  # a file of that name takes precedence


def test_errors_of_the_operating_system_are_halfbyte_errors(source, tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device", str(tmp_path))

    monkeypatch.setattr("halfbyte.engine.pipeline.quantize", full)
    with pytest.raises(MachineError, match="No space left on device"):
        api.quantize(source, tmp_path / "out", RECIPE)


def test_every_function_is_documented_with_all_its_arguments():
    assert set(FUNCTIONS) == set(api.__all__)
    for name in FUNCTIONS:
        function = getattr(api, name)
        for argument in python_inspect.signature(function).parameters:
            assert f"{argument}:" in function.__doc__, f"{name}({argument})"
        if name != "example":
            assert "Returns:" in function.__doc__ and "Raises:" in function.__doc__


def test_no_exported_name_is_also_a_module():
    modules = {module.name for module in pkgutil.iter_modules(halfbyte.__path__)}
    assert modules & set(halfbyte.__all__) == {"api", "doctor"}  # which are modules


USES = "assert callable(halfbyte.api.{0}) and callable(halfbyte.quantize)"
IS_A_PACKAGE = "assert sys.modules['halfbyte.{0}'] is halfbyte.{0} and halfbyte.{0}.__path__"
CALLED = "assert halfbyte.api.inspect({source!r}).shards and halfbyte.api.plan({source!r}, {recipe!r}).shards"


@pytest.mark.parametrize("name", ["audit", "compare", "inspect", "plan", "prune"])
@pytest.mark.parametrize("package_first", [True, False])
def test_a_function_and_the_package_of_its_name_in_both_orders(source, name, package_first):
    use = f"import halfbyte, sys\nfrom halfbyte import api\n{USES}\n{CALLED}\n"
    lines = ["import halfbyte.{0}, sys\n", use] if package_first else [use, "import halfbyte.{0}, sys\n"]
    code = "".join([*lines, use, IS_A_PACKAGE]).format(name, source=str(source), recipe=RECIPE)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", ["audit", "compare", "inspect", "plan", "prune"])
def test_a_package_that_is_called_before_it_is_imported_says_where_the_function_is(name):
    code = f"import halfbyte\nhalfbyte.{name}('OUT')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert f"AttributeError: 'halfbyte.{name}' is a package; call halfbyte.api.{name}(...)" in done.stderr


def test_an_argument_above_its_limit_is_refused(tmp_path):
    with pytest.raises(UsageError, match="'loops' is 65") as caught:
        api.prune(str(tmp_path / "source"), str(tmp_path / "out"), keep=2, loops=65)
    assert "64 or less" in str(caught.value)
