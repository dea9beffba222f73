"""`plan --fit` and `serve --gpus` use the same launch: same engine, parallelism, tokens and errors."""

import json
from dataclasses import replace

import pytest

from halfbyte.checkpoint.folder import INDEX, open_checkpoint
from halfbyte.checkpoint.headers import lay_out
from halfbyte.errors import CheckFailedError, UsageError
from halfbyte.families.kimi_k25.geometry import KIMI_K26, release_config, release_shards
from halfbyte.families.model import describe
from halfbyte.plan.manifest import make_plan
from halfbyte.plan.quantization_config import MODELOPT_FILE, modelopt_file, output_config
from halfbyte.recipe.load import load_recipe, recipe_names
from halfbyte.serve.checkpoint_facts import served
from halfbyte.serve.gpus import known_gpus
from halfbyte.serve.launch import launch, planned_fit
from halfbyte.serve.launch_facts import LaunchOptions

COUNTS = (1, 2, 4, 8)
FROM_NVFP4 = ("kimi-k2.6-nvfp4-reap192",)
NVFP4 = "kimi-k2.6-nvfp4-wafer"


def write(folder, shards, config, modelopt=None):
    """Write a checkpoint of headers: sparse files with the right sizes."""
    folder.mkdir()
    for name, (head, infos) in shards.items():
        with (folder / name).open("wb") as file:
            file.write(head)
            file.truncate(len(head) + sum(info.nbytes for info in infos))
    names = {info.name: name for name, (_, infos) in shards.items() for info in infos}
    nbytes = sum(info.nbytes for _, infos in shards.values() for info in infos)
    (folder / INDEX).write_text(json.dumps({"metadata": {"total_size": nbytes}, "weight_map": names}))
    (folder / "config.json").write_text(json.dumps(config))
    if modelopt is not None:
        (folder / MODELOPT_FILE).write_text(json.dumps(modelopt))
    return folder


def write_output(folder, plan):
    shards = {shard.name: (shard.head, shard.tensors) for shard in plan.shards}
    return write(folder, shards, output_config(plan), modelopt_file(plan))


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """Three layers in INT4 and in NVFP4, wide enough to exceed some GPUs, or others with a full context."""
    folder, shape = tmp_path_factory.mktemp("sources"), replace(KIMI_K26, layers=3, expert_width=12288, kv_rank=16384)
    shards = {name: lay_out(specs, name) for name, specs in release_shards(shape).items()}
    int4 = write(folder / "Kimi-K2.6", shards, release_config(shape))
    return {"int4": int4, "nvfp4": write_output(folder / "Kimi-K2.6-NVFP4", planned(int4, NVFP4))}


def planned(source, recipe):
    checkpoint = open_checkpoint(source)
    return make_plan(checkpoint, describe(checkpoint), load_recipe(recipe))


def by_serve(checkpoint, gpus):
    """Return the engine and the fit of `serve --gpus`, or None with its error and fix."""
    try:
        chosen = launch(checkpoint, gpus, LaunchOptions())
    except (CheckFailedError, UsageError) as error:
        return None, error.what.removeprefix(f"it does not fit on {gpus}: "), error.fix
    return f"{chosen.title} {chosen.version}", chosen.fit, None


@pytest.mark.parametrize("recipe", recipe_names())
def test_plan_and_serve_agree_on_every_gpu(sources, recipe, tmp_path):
    plan = planned(sources["nvfp4" if recipe in FROM_NVFP4 else "int4"], recipe)
    written = served(write_output(tmp_path / "Kimi-K2.6-out", plan))
    fits = set()
    for gpu in known_gpus().values():
        for count in COUNTS:
            gpus = replace(gpu, count=count)
            found, (engine, said, advice) = planned_fit(plan, gpus), by_serve(written, gpus)
            if engine is None:
                assert (found.problem, found.advice) == (said, advice), gpus
            else:
                assert (found.engine, found.fit, found.problem) == (engine, said, None), gpus
            fits.add(found.problem is None)
    assert fits == {True, False}


@pytest.mark.parametrize(("gpus", "how"), [("2xH100", "TP 2, DCP 2"), ("8xRTX-PRO-6000", "TP 8"), ("3xB200", "TP 2")])
def test_the_commands_print_the_same_numbers(sources, halfbyte, tmp_path, gpus, how):
    recipe = "kimi-k2.6-nvfp4-nvidia"
    out = write_output(tmp_path / "out", planned(sources["int4"], recipe))
    ask = ("plan", sources["int4"], "-r", recipe, "--no-measure", "--fit", gpus)
    code, printed, _ = halfbyte(*ask, "--json")
    ours = json.loads(printed)["fit"]
    assert code == 0
    code, printed, _ = halfbyte("serve", out, "--gpus", gpus, "--json")
    theirs = json.loads(printed)["launches"][0]
    assert code == 0
    assert ours.pop("engine") == f"vLLM {theirs['version']}"
    assert ours.pop("gpus").partition("x")[2] == theirs["fit"].pop("gpus").partition("x")[2]
    assert ours == theirs["fit"]
    _, printed, _ = halfbyte(*ask)
    assert f": {ours['kv_tokens']:,} tokens in fp8" in printed
    assert f"({ours['gpu_memory_utilization']:.0%} used" in printed
    assert f", {how}, no draft, up to 128 concurrent requests" in printed


def test_a_launch_that_serve_refuses_does_not_fit(sources, halfbyte):
    ask = ("plan", sources["int4"], "-r", "kimi-k2.6-mxfp4-wafer", "--no-measure", "--fit", "8xB200")
    code, printed, error = halfbyte(*ask)
    assert code == 1
    assert "8xB200: no\n" in printed
    assert "only AMD's MI350X and MI355X serve Quark's MXFP4" in error
    code, printed, _ = halfbyte(*ask, "--json")
    assert code == 1
    assert json.loads(printed)["fit"]["fits"] is False


@pytest.mark.parametrize(("gpus", "fits"), [("8xH100", True), ("8xB200", True), ("8xMI355X", False)])
def test_the_spelling_of_mxfp4_decides_where_it_runs(sources, halfbyte, gpus, fits):
    ask = ("plan", sources["int4"], "-r", "kimi-k2.6-mxfp4a16", "--no-measure", "--json", "--fit", gpus)
    code, printed, _ = halfbyte(*ask)
    found = json.loads(printed)["fit"]
    assert (code, found["fits"]) == (0 if fits else 1, fits)
    assert fits or "compressed-tensors' MXFP4" in found["problem"]


def test_leftover_gpus_are_named(sources, halfbyte):
    ask = ("plan", sources["int4"], "-r", "kimi-k2.6-nvfp4-nvidia", "--no-measure", "--fit", "3xB200")
    code, printed, _ = halfbyte(*ask)
    assert code == 0
    assert "2 of 3xB200: yes" in printed
