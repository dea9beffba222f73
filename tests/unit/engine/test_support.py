"""Every run that a backend does not support is refused before anything is read or written, by one table."""

import re
from contextlib import nullcontext
from pathlib import Path

import pytest
from pico import write_pico
from range_hub import REPO

from halfbyte.checkpoint.folder import open_checkpoint
from halfbyte.checkpoint.remote.address import Cache
from halfbyte.checkpoint.remote.mirror import open_remote
from halfbyte.engine.backends.ray.worker import refuse_small_share, remote_source
from halfbyte.engine.backends.support import (
    BACKENDS,
    CAPABILITIES,
    CUDA,
    LOCAL,
    RAY,
    Request,
    Resources,
    refuse_unsupported,
    supports,
)
from halfbyte.engine.calibrate import calibrate
from halfbyte.engine.pipeline import plan, quantize
from halfbyte.errors import RecipeError, UsageError
from halfbyte.recipe.load import load_recipe

RESOURCES = {LOCAL: Resources(), CUDA: Resources(device="cuda"), RAY: Resources(ray="local")}
WAFER, GPTQ, REAP = "kimi-k2.6-nvfp4-wafer", "kimi-k2.6-nvfp4-gptq", "kimi-k2.6-nvfp4-reap192"
PUBLIC, QUANTIZED = ["calibrate.public_reap=true"], ["calibrate.propagate=quantized"]
ALL_EXPERTS = ["quantize.input_scale.backstop=all_experts", "quantize.input_scale.min_tokens=8"]


def request(backend, recipe=WAFER, sets=(), **options):
    return Request(
        recipe=load_recipe(recipe, list(sets)), resources=RESOURCES[backend], **{"measures": True, **options}
    )


@pytest.mark.parametrize(
    ("backend", "resources"),
    [
        (LOCAL, Resources()),
        (CUDA, Resources(device="cuda:0,cuda:1")),
        (CUDA, Resources(device="cpu:0")),
        (RAY, Resources(ray="auto")),
        (RAY, Resources(ray="auto", device="cuda")),
    ],
)
def test_the_resources_select_the_backend(backend, resources):
    assert resources.backend == backend


@pytest.mark.parametrize("backend", BACKENDS)
def test_every_backend_calibrates_and_quantizes(backend):
    assert supports(request(backend)) == []
    assert supports(request(backend, "kimi-k2.6-mxfp4-wafer", measures=False)) == []


@pytest.mark.parametrize(
    ("backend", "options", "error", "what"),
    [
        (RAY, {"recipe": GPTQ}, UsageError, "--ray does not support GPTQ"),
        (CUDA, {"sets": ALL_EXPERTS}, RecipeError, "the backstop all_experts is not supported on the GPU"),
        (CUDA, {"sets": PUBLIC}, RecipeError, "'public_reap: true' is supported on the CPU only"),
        *[(backend, {"sets": QUANTIZED}, RecipeError, "'propagate: quantized' is not implem") for backend in BACKENDS],
        (RAY, {"remote": True}, UsageError, "would fetch the complete remote source"),
        (RAY, {"pushes": True}, UsageError, "--push cannot be combined with --ray"),
    ],
)
def test_unsupported_runs_are_refused(backend, options, error, what):
    run = request(backend, **options)
    (reason,) = supports(run)
    assert type(reason) is error
    assert what in reason.what
    assert reason.where in {run.recipe.name, "--ray", "--push", "--device"}
    assert reason.fix
    with pytest.raises(error, match=re.escape(what)):
        refuse_unsupported(run)


@pytest.mark.parametrize("backend", [LOCAL, CUDA])
@pytest.mark.parametrize("recipe", [GPTQ, REAP])
def test_gptq_and_pruning_run_on_cpus_and_gpus(backend, recipe):
    assert supports(request(backend, recipe)) == []


def test_what_a_run_does_not_need_is_not_refused():
    assert supports(request(CUDA, sets=ALL_EXPERTS, measures=False)) == []
    assert supports(request(CUDA, sets=PUBLIC, measures=False)) == []
    assert supports(request(RAY, remote=True, measures=False)) == []
    assert supports(request(LOCAL, remote=True, pushes=True)) == []


def test_resources_that_contradict_each_other_are_refused():
    recipe = load_recipe(WAFER)
    both = Request(recipe=recipe, resources=Resources(ray="auto", device="cuda"), measures=False)
    assert "cannot be combined with --device cuda" in supports(both)[0].what
    for resources in (Resources(device_memory=1), Resources(device_memory=1, ray="auto")):
        (reason,) = supports(Request(recipe=recipe, resources=resources, measures=False))
        assert reason.what == "--device-memory requires a GPU"


def test_rows_name_known_backends_and_state_when_they_apply():
    names = [row.name for row in CAPABILITIES]
    assert len(set(names)) == len(names)
    for row in CAPABILITIES:
        assert row.missing.keys() <= BACKENDS.keys(), row.name
        assert bool(row.missing) == any(row.needed(request) for request in _requests()), row.name


def _requests():
    for backend in BACKENDS:
        for options in (
            {"recipe": GPTQ},
            {"recipe": REAP},
            {"sets": ALL_EXPERTS},
            {"sets": PUBLIC},
            {"sets": QUANTIZED},
            {"remote": True},
            {"pushes": True},
        ):
            yield request(backend, **options)
    yield Request(recipe=load_recipe(WAFER), resources=Resources(device_memory=1), measures=False)


@pytest.mark.parametrize(
    ("recipe", "sets", "options"),
    [(WAFER, ALL_EXPERTS, {"device": "cuda"}), (WAFER, PUBLIC, {"device": "cuda"}), (WAFER, QUANTIZED, {})],
)
def test_quantize_and_calibrate_refuse_before_the_source_is_read(tmp_path, recipe, sets, options):
    refused, missing = load_recipe(recipe, list(sets)), tmp_path / "missing"
    with pytest.raises(RecipeError):
        quantize(missing, tmp_path / "out", refused, **options)
    with pytest.raises(RecipeError):
        calibrate(missing, tmp_path / "stats", refused, **options)
    assert not list(tmp_path.iterdir())


def test_the_tasks_of_a_machine_share_what_it_may_hold(serve_hub, tmp_path):
    serve_hub(write_pico(tmp_path / "source"))
    made = plan(open_remote(f"hf://{REPO}", Cache(tmp_path / "cache", 300_000)), load_recipe("kimi-k2.6-mxfp4-wafer"))
    for tasks, fits in ((4, True), (5, False)):  # the largest shard has 71,456 bytes
        source = remote_source(made.checkpoint.remote, tasks)
        assert source.limit_nbytes == 300_000 // tasks
        assert Path(source.cache) == tmp_path / "cache"
        with nullcontext() if fits else pytest.raises(UsageError, match="5 tasks run concurrently on a node") as said:
            refuse_small_share(made, (), source, tasks)
    assert "use --cache 1MB or more" in said.value.fix


def test_a_remote_source_is_not_calibrated_on_a_cluster(serve_hub, tmp_path):
    serve_hub(write_pico(tmp_path / "source"))
    remote = open_remote(f"hf://{REPO}", Cache(tmp_path / "cache", 300_000))
    with pytest.raises(UsageError, match="would fetch the complete remote source"):
        quantize(remote, tmp_path / "out", load_recipe(WAFER), ray="auto")
    assert open_checkpoint(tmp_path / "source").remote is None
