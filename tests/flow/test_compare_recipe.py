"""`halfbyte compare SRC -r RECIPE`: the bytes and the numbers of the written output, without writing it."""

import json
from pathlib import Path

import numpy as np
import pytest
from calibratable import NVIDIA, SHORT, WAFER, small, texts

from halfbyte import api
from halfbyte.checkpoint.folder import open_checkpoint
from halfbyte.checkpoint.reader import Reader
from halfbyte.engine import planned_output as module
from halfbyte.engine.planned_output import PlannedReader, planned_output
from halfbyte.errors import UsageError
from halfbyte.recipe.load import load_recipe

MINI = Path(__file__).parents[2] / "models" / "kimi-mini"
WORDS = Path(__file__).parents[2] / "evals" / "word_problems" / "test.jsonl"
REAP, GPTQ = "kimi-k2.6-nvfp4-reap192", "kimi-k2.6-nvfp4-gptq"
IGNORED = 'quantize.config.ignore_patterns=["lm_head", "*vision_tower*", "*mm_projector*"]'
SERVED = {"activations": "as-served", "kv": "fp8"}
# Recipe, overrides, whether it needs statistics, and the emulation to compare with besides none.
RECIPES = {
    "mxfp4": ("kimi-k2.6-mxfp4-wafer", (), False, SERVED),
    "mxfp4-ct": ("kimi-k2.6-mxfp4a16", (), False, {}),
    "nvfp4-max": ("kimi-k2.7-code-nvfp4-nvidia", (), False, SERVED),
    "nvfp4-ct": ("kimi-k2.6-nvfp4a16", (), False, {}),
    "fp8": ("kimi-k2.6-fp8-reference", (), False, {}),
    "bf16": ("kimi-k2.6-bf16", (), False, {}),
    "calibrated-mse": (NVIDIA, (), True, SERVED),
    "calibrated-max": (WAFER, (), True, {"activations": "as-served", "kv": "fp8-scaled"}),
    "attention": (WAFER, ("roles.attention=quantize", IGNORED), True, {"activations": "as-served"}),
    "pruned": (REAP, ("prune.keep=5",), True, {}),
}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    root = tmp_path_factory.mktemp("planned")
    small(root / "source", experts=8)
    texts(root / "texts.jsonl", 24)
    return root


@pytest.fixture(scope="module")
def stats(place):
    """Statistics of the source, for scales and pruning."""
    from halfbyte.calibrate.datasets import with_data
    from halfbyte.engine.calibrate import calibrate

    recipe = with_data(load_recipe(WAFER, (SHORT,)), (f"news={place / 'texts.jsonl'}:article",), 12)
    calibrate(place / "source", place / "stats", recipe, threads=2)
    return place / "stats"


@pytest.fixture(scope="module")
def written(place, request):
    """Return the folder that `quantize` writes with a recipe, and the arguments of `compare` for the same recipe."""

    def write(key):
        name, overrides, calibrated, _ = RECIPES[key]
        stats = request.getfixturevalue("stats") if calibrated else None
        if not (place / key).exists():
            api.quantize(place / "source", place / key, name, overrides=overrides, stats=stats, verify_source=False)
        return place / key, {"recipe": name, "overrides": overrides, "stats": stats}

    return write


def compared(place, out=None, **how):
    """Return the results without names and time."""
    data = {"news": f"{place / 'texts.jsonl'}:article"}
    report = api.compare(place / "source", out, data, samples=8, length=24, rows="padded", **how)
    record = report.whole_record("all").as_json()
    for key in ("first", "second", "seconds"):
        del record[key]
    return record


@pytest.mark.parametrize("key", RECIPES)
def test_the_reader_returns_the_written_bytes(place, written, key):
    folder, how = written(key)
    recipe = load_recipe(how["recipe"], how["overrides"])
    output = planned_output(place / "source", recipe, how["stats"], input_scales=True, kv_scales=True)
    made = open_checkpoint(folder)
    assert output.checkpoint.config == made.config
    assert dict(output.checkpoint.tensors) == dict(made.tensors)
    with (
        Reader(made) as there,
        Reader(open_checkpoint(place / "source")) as source,
        PlannedReader(output, source) as here,
    ):
        for info in made.tensors.values():
            assert np.array_equal(here.raw(info), there.raw(info)), info.name
            memory = np.empty(info.nbytes, np.uint8)
            here.read_into(info, memory)
            assert np.array_equal(memory, there.raw(info))


@pytest.mark.parametrize("key", RECIPES)
def test_the_numbers_are_those_of_the_written_output(place, written, key):
    folder, how = written(key)
    for emulated in [{}, RECIPES[key][3]] if RECIPES[key][3] else [{}]:
        ours, theirs = (
            compared(place, **how, **emulated, by_layer=True),
            compared(place, folder, **emulated, by_layer=True),
        )
        assert ours.pop("planned") == json.loads((folder / "halfbyte" / "plan.json").read_text())["fingerprint"]
        assert ours == theirs
        assert (ours["total"]["kl"]["value"] > 0) == (key != "bf16")


def test_the_numbers_of_kimi_mini(tmp_path):
    name = "kimi-k2.6-mxfp4-wafer"
    api.quantize(MINI, tmp_path / "out", name, verify_source=False)
    data, size = {"sums": f"{WORDS}:question,answer"}, {"samples": 4, "length": 48}
    how = {"activations": "as-served", "kv": "fp8", **size}
    ours = api.compare(MINI, data=data, recipe=name, **how)
    theirs = api.compare(MINI, tmp_path / "out", data, **how)
    assert ours.total == theirs.total
    assert ours.layers == theirs.layers
    assert ours.emulated == theirs.emulated
    assert ours.total.kl.value > 0


def test_scales_are_not_needed_without_emulation(place, written):
    folder, how = written("calibrated-max")
    ours, theirs = compared(place, **{**how, "stats": None}), compared(place, folder)
    del ours["planned"]
    assert ours == theirs


def test_added_errors(place, written):
    """The first MoE layer has the source's own inputs, so that it adds its whole error. Later ones add less."""
    _, how = written("mxfp4")
    plain, by_layer = compared(place, **how), compared(place, **how, by_layer=True)
    assert all("added_error" not in layer for layer in plain["layers"])
    assert "added_error" not in plain["by_layer"]
    added = [layer.pop("added_error") for layer in by_layer["layers"]]
    assert by_layer["by_layer"].pop("added_error") == added
    assert plain == by_layer
    errors = [layer["relative_error"] for layer in plain["layers"]]
    assert added[:2] == errors[:2]
    assert added[0] == 0 < added[1]
    assert 0 < added[2] != errors[2]


def test_a_job_is_encoded_once_per_expert(place, written, monkeypatch):
    """Gate and up of an expert form one job in NVFP4. Input scales need no weights."""
    calls = []
    real = module.apply
    monkeypatch.setattr(module, "apply", lambda job, *inputs: calls.append(job.name) or real(job, *inputs))
    _, how = written("calibrated-mse")
    compared(place, **how, activations="as-served", threads=2)
    assert calls
    assert len(calls) == len(set(calls))


@pytest.mark.parametrize(
    ("recipe", "how", "what", "fix"),
    [
        (GPTQ, {}, "needs the Hessians of expert inputs", "halfbyte quantize SRC OUT -r RECIPE"),
        (REAP, {}, "selects experts by statistics", "halfbyte calibrate SRC -r RECIPE -o STATS"),
        (NVIDIA, {"activations": "as-served"}, "calibrates the input scales", "halfbyte calibrate SRC -r RECIPE"),
        (WAFER, {"kv": "fp8-scaled"}, "calibrates the KV-cache scales", "halfbyte calibrate SRC -r RECIPE"),
    ],
)
def test_missing_statistics_are_refused(place, recipe, how, what, fix):
    with pytest.raises(UsageError, match=what) as error:
        compared(place, recipe=recipe, **how)
    assert fix in error.value.fix


def test_statistics_without_use_are_refused(place, stats):
    with pytest.raises(UsageError, match="does not use statistics"):
        compared(place, recipe="kimi-k2.6-mxfp4-wafer", stats=stats)


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        ((), "nothing to compare with"),
        (("OUT", "-r", "kimi-k2.6-bf16"), "OUT and -r cannot be combined"),
        (("OUT", "--stats", "x"), "--stats requires -r"),
        (("OUT", "--set", "shards=5GB"), "--set requires -r"),
        (("-r", "kimi-k2.6-bf16", "-o", "SRC/compare.json"), "the report would be written into the source"),
        (("-r", "no-such-recipe"), "no-such-recipe"),
    ],
)
def test_exactly_one_of_folder_and_recipe(place, halfbyte, arguments, what):
    source = place / "source"
    words = [str(argument).replace("SRC", str(source)).replace("OUT", str(source)) for argument in arguments]
    code, out, err = halfbyte("compare", source, *words, "--data", f"a={place / 'texts.jsonl'}:article")
    assert (code, out) == (2, "")
    assert what in err.splitlines()[0].replace(str(source), "SRC")
    assert "  fix   " in err


def test_the_command_writes_one_file_and_nothing_into_the_source(place, halfbyte, tmp_path):
    source = place / "source"
    before = sorted((path.name, path.stat().st_mtime_ns) for path in source.rglob("*"))
    file = tmp_path / "compare.json"
    data = ("--data", f"news={place / 'texts.jsonl'}:article", "--samples", "8", "--length", "24", "--rows", "padded")
    how = ("-r", "kimi-k2.6-nvfp4a16", "--set", "quantize.scales=max", "--by-layer", "-o", file)
    code, out, err = halfbyte("compare", source, *how, *data)
    assert code == 0, err
    assert sorted((path.name, path.stat().st_mtime_ns) for path in source.rglob("*")) == before
    record = json.loads(file.read_text())
    assert record["second"] == f"{source} with recipe kimi-k2.6-nvfp4a16"
    assert len(record["planned"]) == 16
    assert "measured_files" not in record
    assert "added error (largest 3 layers)" in out
    rated = sorted((layer["added_error"] for layer in record["layers"]), reverse=True)
    table = out.partition("added error (largest 3 layers)")[2].splitlines()[1:4]
    assert [line.split()[1] for line in table] == [f"{value:.3g}" for value in rated]
    assert "added error" in err
    assert f"next: halfbyte quantize {source} OUT -r kimi-k2.6-nvfp4a16" in err
