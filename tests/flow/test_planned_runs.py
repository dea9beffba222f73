"""`quantize --plan`: the same bytes as from the recipe, without the libraries that read recipes and Parquet files."""

import json
import os
import subprocess
import sys

import pytest
from calibratable import arguments, digests, small, texts
from pico import write_pico

from halfbyte.checkpoint.output_folder import read_plan
from halfbyte.errors import EXIT_INTERRUPTED, UsageError

MXFP4 = "kimi-k2.6-mxfp4-wafer"
# A machine without pydantic and pyarrow. YAML is hidden from halfbyte at least, from everyone unless the first argument
# says so: transformers, which runs the layers, cannot be imported without it.
_WITHOUT = """
import builtins, sys

hidden = {"pydantic", "pydantic_core", "pyarrow"} | (set() if sys.argv[1] == "forward" else {"yaml"})


class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in hidden:
            raise ModuleNotFoundError(f"No module named '{name}'", name=name)


def without_yaml(name, globals=None, *more, **named):
    if name.partition(".")[0] == "yaml" and str((globals or {}).get("__name__")).startswith("halfbyte"):
        raise ModuleNotFoundError("No module named 'yaml'", name="yaml")
    return ordinary(name, globals, *more, **named)


assert not hidden & set(sys.modules)
sys.meta_path.insert(0, Absent())
ordinary, builtins.__import__ = builtins.__import__, without_yaml
from halfbyte.cli.main import run

code = run(sys.argv[2:])
assert not hidden & set(sys.modules)
sys.exit(code)
"""


def decided(folder):
    """Return the plan of an output without the recorded command."""
    return {key: value for key, value in read_plan(folder).items() if key != "command"}


def bare(*argv, forward=False):
    """Run a command on such a machine; return its exit code, stdout and stderr."""
    command = [sys.executable, "-c", _WITHOUT, "forward" if forward else "no forward", *map(str, argv)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | {"NO_COLOR": "1"})
    return done.returncode, done.stdout, done.stderr


@pytest.fixture
def done(halfbyte):
    """Run a command that must succeed."""

    def run(*argv):
        code, out, err = halfbyte("-q", *argv)
        assert code == 0, out + err

    return run


@pytest.mark.parametrize("choice", [[], ["--layers", "2", "--set", "shards=1MB"]])
def test_a_plan_without_data_gives_the_bytes_of_its_recipe(tmp_path, done, choice):
    source, file = write_pico(tmp_path / "source", "int4-k2.6"), tmp_path / "plan.json"
    done("plan", source, "-r", MXFP4, *choice, "--no-measure", "-o", file)
    done("quantize", source, tmp_path / "recipe", "-r", MXFP4, *choice)
    code, _, said = bare("quantize", source, tmp_path / "plan", "--plan", file)
    assert code == 0, said
    assert digests(tmp_path / "plan") == digests(tmp_path / "recipe")
    assert decided(tmp_path / "plan") == decided(tmp_path / "recipe")
    # Each resumes the other's run, and the plan of an output can be used like any other.
    own = tmp_path / "recipe/halfbyte/plan.json"
    code, printed, said = bare("--json", "quantize", source, tmp_path / "recipe", "--plan", own)
    assert code == 0, said
    assert json.loads(printed)["resumed"] == json.loads(printed)["shards"] > 0


def test_a_recipe_needs_what_a_plan_does_not(tmp_path):
    source = write_pico(tmp_path / "source", "int4-k2.6")
    code, _, said = bare("quantize", source, tmp_path / "out", "-r", MXFP4)
    assert code not in (0, EXIT_INTERRUPTED)
    assert "No module named 'pydantic'" in said or "No module named 'yaml'" in said


def test_a_plan_with_data_gives_the_bytes_of_its_recipe(tmp_path, done):
    """Measured while the checkpoint is written, from a file that the plan names; and from statistics."""
    source, data = small(tmp_path / "source", experts=6), texts(tmp_path / "texts.jsonl")
    file, stats = tmp_path / "plan.json", tmp_path / "stats"
    done("plan", source, *arguments(data), "--no-measure", "-o", file)
    assert json.loads(file.read_text())["recipe"]["calibrate"]["datasets"][0]["source"] == str(data)
    done("quantize", source, tmp_path / "recipe", *arguments(data))
    code, _, said = bare("quantize", source, tmp_path / "plan", "--plan", file, forward=True)
    assert code == 0, said
    assert digests(tmp_path / "plan") == digests(tmp_path / "recipe")
    assert decided(tmp_path / "plan") == decided(tmp_path / "recipe")

    done("calibrate", source, *arguments(data), "-o", stats)
    code, _, said = bare("quantize", source, tmp_path / "given", "--plan", file, "--stats", stats)
    assert code == 0, said
    assert digests(tmp_path / "given") == digests(tmp_path / "recipe")


@pytest.fixture(scope="module")
def planned(tmp_path_factory):
    """A source and a plan for it."""
    from halfbyte.cli.main import run

    folder = tmp_path_factory.mktemp("planned")
    source = write_pico(folder / "source", "int4-k2.6")
    file = folder / "plan.json"
    assert run(["-q", "plan", str(source), "-r", MXFP4, "--no-measure", "-o", str(file)]) == 0
    return source, file


@pytest.mark.parametrize(
    ("options", "what", "fix"),
    [
        ([], "no recipe or plan specified", "pass -r RECIPE or --plan FILE"),
        (["-r", MXFP4, "--plan"], "-r and --plan cannot be combined", "omit one: a plan contains its recipe"),
        (["--set", "shards=layers", "--plan"], "--set cannot be combined with --plan", "--set ... -o FILE"),
        (["--data", "a=b.jsonl", "--plan"], "--data cannot be combined with --plan", "--data ... -o FILE"),
        (["--samples", "3", "--plan"], "--samples cannot be combined with --plan", "--samples ... -o FILE"),
        (["--layers", "2", "--plan"], "the plan does not match: layers, shards differ", "use the source, the layers"),
        (["--stats", "x", "--plan"], f"recipe '{MXFP4}' does not use statistics", "omit --stats"),
    ],
)
def test_options_that_contradict_a_plan(planned, tmp_path, halfbyte, options, what, fix):
    source, file = planned
    words = [*options, file] if "--plan" in options else options
    code, _, said = halfbyte("quantize", source, tmp_path / "out", *words)
    assert code == UsageError.exit_code
    assert what in said
    assert fix in said
    assert not (tmp_path / "out").exists()


def other_recipe(plan):
    plan["recipe"]["shards"] = "layers" if plan["recipe"]["shards"] != "layers" else "5GB"


def unknown_key(plan):
    plan["recipe"]["quantize"]["cleverness"] = 1


def lost_key(plan):
    del plan["recipe"]["quantize"]["format"]


def no_parts(plan):
    plan["parts"] = []


def strange_layers(plan):
    plan["parts"]["layers"] = "some"


def other_version(plan):
    plan["parts"]["bytes_version"] = "0"


@pytest.mark.parametrize(
    ("damage", "what"),
    [
        (other_recipe, "the recipe in this plan was changed after the plan was created"),
        (unknown_key, "not a plan of this version of halfbyte, or damaged"),
        (lost_key, "not a plan of this version of halfbyte, or damaged"),
        (no_parts, "not a plan of this version of halfbyte, or damaged"),
        (strange_layers, "not a plan of this version of halfbyte, or damaged"),
        (other_version, "the plan does not match: bytes_version differs"),
    ],
)
def test_a_plan_that_was_changed(planned, tmp_path, halfbyte, damage, what):
    source, file = planned
    plan = json.loads(file.read_text())
    damage(plan)
    changed = tmp_path / "changed.json"
    changed.write_text(json.dumps(plan))
    code, _, said = halfbyte("quantize", source, tmp_path / "out", "--plan", changed)
    assert (code, what in said, str(changed) in said) == (UsageError.exit_code, True, True), said
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("text", ["", "[]", "{", '"plan"', "null", "{}", "[" * 100_000, "\x80"])
def test_a_file_that_is_no_plan(planned, tmp_path, halfbyte, text):
    source, _ = planned
    (tmp_path / "plan.json").write_text(text, encoding="latin-1")
    code, _, said = halfbyte("quantize", source, tmp_path / "out", "--plan", tmp_path / "plan.json")
    assert (code, "not a plan of this version of halfbyte" in said) == (UsageError.exit_code, True), said


def test_a_plan_that_is_not_there(planned, tmp_path, halfbyte):
    for path in (tmp_path / "nothing.json", tmp_path):
        code, _, said = halfbyte("quantize", planned[0], tmp_path / "out", "--plan", path)
        assert (code, "cannot read the plan: " in said) == (UsageError.exit_code, True), said


def test_a_plan_for_another_source(planned, tmp_path, halfbyte):
    other = write_pico(tmp_path / "other", "int4-k2.6", experts=6)
    code, _, said = halfbyte("quantize", other, tmp_path / "out", "--plan", planned[1])
    assert code == UsageError.exit_code
    assert "the plan does not match: source config, source tensors, shards differ" in said
    assert not (tmp_path / "out").exists()


def test_a_written_plan_is_the_one_that_a_run_notes(planned, tmp_path, done):
    """Except for the keys `source` and `command`."""
    source, file = planned
    done("quantize", source, tmp_path / "out", "--plan", file)
    noted, written = read_plan(tmp_path / "out"), json.loads(file.read_text())
    own = {"source", "command"}
    assert noted.keys() - written.keys() == own
    assert {key: written[key] for key in noted.keys() & written.keys()} == {
        key: value for key, value in noted.items() if key not in own
    }
