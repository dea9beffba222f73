"""Runs on a real Ray cluster of two nodes: the bytes of a local run, despite failures."""

import os
import shutil
import signal
import subprocess
import sys
import threading
import time

import pytest
from calibratable import WAFER, small, texts, wait_until
from pruning import plan_of, some
from ray_cluster import RayCluster, everything

from halfbyte.calibrate.datasets import with_data
from halfbyte.calibrate.store import read_stats
from halfbyte.engine.calibrate import calibrate
from halfbyte.engine.pipeline import quantize
from halfbyte.errors import CheckpointError, InterruptedRunError, MachineError, TensorError, UsageError
from halfbyte.prune.options import recipe_of_plan
from halfbyte.recipe.load import load_recipe

ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'ray>=2.50'")

MXFP4, NVFP4 = "kimi-k2.6-mxfp4-wafer", "kimi-k2.6-nvfp4a16"
FIXED = "kimi-k2.7-code-nvfp4-nvidia"
LAYERS = 4
SHORT = "calibrate.sequence_length=24"
EVERYWHERE = ("quantize.input_scale.backstop=all_experts", "quantize.input_scale.min_tokens=560")
DEADLINE = 90  # seconds, of everything that is waited for


@pytest.fixture(scope="module")
def cluster():
    started = RayCluster()
    yield started
    started.close()
    assert not started.processes()


@pytest.fixture(scope="module")
def joined(cluster):
    """The address, with this process connected for all tests: workers keep their imports."""
    ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
    yield cluster.address
    ray.shutdown()


@pytest.fixture(autouse=True)
def without_faults(cluster):
    cluster.faults.clear()
    yield
    cluster.faults.clear()


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A source, its statistics, and the output of local runs."""
    folder = tmp_path_factory.mktemp("place")
    small(folder / "source", layers=LAYERS, experts=12, hidden=128, expert_width=96)
    texts(folder / "texts.jsonl", 140)
    quantize(folder / "source", folder / "mxfp4", load_recipe(MXFP4))
    quantize(folder / "source", folder / "wafer", recipe_with_data(folder))
    return folder


def recipe_with_data(place, *sets, samples=140):
    return with_data(load_recipe(WAFER, [SHORT, "shards=1MB", *sets]), [f"news={place / 'texts.jsonl'}"], samples)


def test_fixed_input_scales_are_written_on_every_node(place, joined, tmp_path):
    recipe = load_recipe(FIXED, ["shards=1MB"])
    quantize(place / "source", tmp_path / "here", recipe)
    quantize(place / "source", tmp_path / "ray", recipe, ray=joined)
    assert everything(tmp_path / "ray") == everything(tmp_path / "here")


def parts(out):
    return sorted(path.name for path in out.rglob("*.part"))


def in_thread(work):
    """Run a function in a thread; return the thread and the list for its result."""
    outcome = []

    def run():
        try:
            outcome.append(work())
        except BaseException as error:
            outcome.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread, outcome


def command(cluster, source, out, *more):
    """Start the command line as another driver of the cluster."""
    argv = [sys.executable, "-m", "halfbyte", "quantize", source, out, "-r", MXFP4, "--ray", cluster.address, *more]
    environment = {**cluster.environment, "HALFBYTE_TEST_FAULTS": ""}
    return subprocess.Popen([str(word) for word in argv], stderr=subprocess.PIPE, text=True, env=environment)


# --- the same bytes ---


def test_a_recipe_without_data(place, joined, tmp_path):
    seen = []
    result = quantize(place / "source", tmp_path / "out", load_recipe(MXFP4), ray=joined, progress=seen.append)
    assert everything(tmp_path / "out") == everything(place / "mxfp4")
    assert (result.shards, result.resumed) == (len(seen), 0)
    assert all(progress.node for progress in seen)
    assert seen[-1].done_nbytes == seen[-1].all_nbytes > 0


def test_shards_that_span_layers_and_jobs_that_span_shards(place, joined, tmp_path):
    recipe = load_recipe(NVFP4, ["shards=1MB"])
    for name, address in (("local", None), ("out", joined)):
        quantize(place / "source", tmp_path / name, recipe, ray=address)
    assert everything(tmp_path / "out") == everything(tmp_path / "local")


def test_statistics_that_are_given(place, joined, tmp_path):
    calibrate(place / "source", tmp_path / "stats", recipe_with_data(place, samples=6))
    for name, address in (("local", None), ("out", joined)):
        quantize(place / "source", tmp_path / name, recipe_with_data(place), stats=tmp_path / "stats", ray=address)
    assert everything(tmp_path / "out") == everything(tmp_path / "local")


def test_pruning(place, joined, tmp_path):
    plan = plan_of(place / "source", some(place / "source", 7))
    for name, address in (("local", None), ("out", joined)):
        recipe = recipe_of_plan(plan, "layers")
        quantize(place / "source", tmp_path / name, recipe, prune_plan=plan, ray=address)
    assert everything(tmp_path / "out") == everything(tmp_path / "local")


def test_statistics_that_are_measured_by_many(place, joined, tmp_path):
    """140 rows are three parts, shared by two nodes; the local run has them all at once."""
    quantize(place / "source", tmp_path / "out", recipe_with_data(place), ray=joined)
    assert everything(tmp_path / "out") == everything(place / "wafer")


def test_experts_that_see_few_tokens_are_shown_all(place, joined, tmp_path):
    recipe = recipe_with_data(place, *EVERYWHERE)
    for name, address in (("local", None), ("out", joined)):
        quantize(place / "source", tmp_path / name, recipe, ray=address)
    layers = read_stats(tmp_path / "local/halfbyte/stats")[1].values()
    shown = [layer.experts.all_down_amax > 0 for layer in layers if layer.experts]
    assert any(some.any() and not some.all() for some in shown)
    assert everything(tmp_path / "out") == everything(tmp_path / "local")


def test_experts_that_are_chosen_on_the_way(place, joined, tmp_path, halfbyte):
    data = ["--data", f"news={place / 'texts.jsonl'}", "--samples", "120", "--length", "24", "--keep", "7"]
    for name, where in (("local", []), ("out", ["--ray", joined])):
        code, _, words = halfbyte("prune", place / "source", tmp_path / name, *data, "--no-loops", *where)
        assert code == 0, words
    assert everything(tmp_path / "out") == everything(tmp_path / "local")


@pytest.mark.parametrize("begun_there", [True, False])
def test_measuring_goes_on_elsewhere(place, joined, tmp_path, begun_there):
    def stop(progress):
        if progress.shard.startswith("measured layer 2"):
            raise KeyboardInterrupt

    out, said = tmp_path / "out", []
    first, then = (joined, None) if begun_there else (None, joined)
    with pytest.raises(InterruptedRunError, match="interrupted"):
        quantize(place / "source", out, recipe_with_data(place), ray=first, progress=stop)
    assert not parts(out)
    quantize(place / "source", out, recipe_with_data(place), ray=then, progress=lambda step: said.append(step.shard))
    assert [line for line in said if line.startswith("measured")] == ["measured layer 3 of 4", "measured layer 4 of 4"]
    assert everything(out) == everything(place / "wafer")


def test_begun_here_and_finished_there(place, joined, tmp_path):
    def stop(progress):
        if progress.shard.startswith("model-00002"):
            raise KeyboardInterrupt

    out = tmp_path / "out"
    with pytest.raises(InterruptedRunError, match="interrupted"):
        quantize(place / "source", out, load_recipe(MXFP4), threads=1, progress=stop)
    done = len(list(out.glob("*.safetensors")))
    result = quantize(place / "source", out, load_recipe(MXFP4), ray=joined)
    assert 0 < done == result.resumed < result.shards
    assert everything(out) == everything(place / "mxfp4")


# --- what dies ---


def test_a_worker_that_is_killed(place, cluster, joined, tmp_path):
    said = []
    cluster.faults.add("kill", 2)
    out = tmp_path / "out"
    quantize(place / "source", out, load_recipe(MXFP4), ray=joined, progress=lambda step: said.append(step.shard))
    assert cluster.faults.left("kill") == 0
    assert sum("retrying, attempt" in line for line in said) == 2
    assert everything(out) == everything(place / "mxfp4")


def test_a_worker_that_is_killed_while_it_measures(place, cluster, joined, tmp_path):
    said = []
    cluster.faults.add("kill")
    out = tmp_path / "out"
    quantize(place / "source", out, recipe_with_data(place), ray=joined, progress=lambda step: said.append(step.shard))
    assert cluster.faults.left("kill") == 0
    assert sum(line.startswith("layer 0, rows from") and "retrying, attempt" in line for line in said) == 1
    assert everything(out) == everything(place / "wafer")


def test_a_worker_without_memory(place, cluster, joined, tmp_path):
    said = []
    cluster.faults.add("memory", 3)
    out = tmp_path / "out"
    quantize(place / "source", out, load_recipe(MXFP4), ray=joined, progress=lambda step: said.append(step.shard))
    assert cluster.faults.left("memory") == 0
    assert 1 <= sum("nothing left; retrying" in line for line in said) <= 3  # threads of a task may take several
    assert everything(out) == everything(place / "mxfp4")


def test_memory_that_never_suffices_ends_in_a_sentence_and_a_folder_that_goes_on(place, cluster, joined, tmp_path):
    cluster.faults.add("memory", 1000)
    out = tmp_path / "out"
    with pytest.raises(MachineError, match=r"failed 4 times.*nothing left"):
        quantize(place / "source", out, load_recipe(MXFP4), ray=joined)
    assert not parts(out)
    cluster.faults.clear()
    quantize(place / "source", out, load_recipe(MXFP4))
    assert everything(out) == everything(place / "mxfp4")


def test_a_node_that_is_killed(place, cluster, joined, tmp_path):
    cluster.faults.slow(0.2)
    out, said = tmp_path / "out", []
    work, outcome = in_thread(
        lambda: quantize(
            place / "source", out, load_recipe(MXFP4), ray=joined, progress=lambda step: said.append(step.shard)
        )
    )
    wait_until(lambda: len({pid for pid, _ in cluster.faults.jobs()}) == 2, DEADLINE)  # both nodes are at it
    cluster.remove_node()
    cluster.faults.slow(0)
    work.join(DEADLINE)
    cluster.add_node()
    assert not work.is_alive()
    assert not isinstance(outcome[0], BaseException), outcome
    assert any("retrying, attempt" in line for line in said)
    assert everything(out) == everything(place / "mxfp4")


def test_a_dead_driver_leaves_no_workers_and_a_folder_that_goes_on(place, cluster, tmp_path):
    cluster.faults.slow(0.5)
    out = tmp_path / "out"
    driver = command(cluster, place / "source", out)
    wait_until(lambda: parts(out) and cluster.faults.jobs(), DEADLINE)
    driver.kill()
    driver.wait(DEADLINE)
    workers = {pid for pid, _ in cluster.faults.jobs()}
    wait_until(lambda: not workers & set(cluster.processes()), DEADLINE)  # Ray stops them with their driver
    begun = len(cluster.faults.jobs())
    cluster.faults.slow(0)
    result = quantize(place / "source", out, load_recipe(MXFP4))
    assert result.resumed < result.shards
    assert everything(out) == everything(place / "mxfp4")
    assert len(cluster.faults.jobs()) == begun


def test_ctrl_c(place, cluster, joined, tmp_path):
    cluster.faults.slow(0.2)
    out = tmp_path / "out"
    driver = command(cluster, place / "source", out)
    journal = out / "halfbyte/journal.jsonl"
    wait_until(lambda: journal.exists() and journal.read_text().strip(), DEADLINE)
    driver.send_signal(signal.SIGINT)
    began = time.monotonic()
    _, words = driver.communicate(timeout=DEADLINE)
    assert driver.returncode == 130, words
    assert "shards are complete, and nothing needs cleaning up" in words
    assert time.monotonic() - began < 20
    assert not parts(out)
    cluster.faults.slow(0)
    result = quantize(place / "source", out, load_recipe(MXFP4), ray=joined)
    assert result.resumed > 0
    assert everything(out) == everything(place / "mxfp4")


# --- errors ---


def test_a_tensor_that_cannot_be_used_is_said_as_locally_and_once(place, cluster, joined, tmp_path):
    from safetensors.torch import load_file, save_file

    source = shutil.copytree(place / "source", tmp_path / "source")
    shard = sorted(source.glob("model-*.safetensors"))[1]
    tensors = load_file(shard)
    name = next(name for name in tensors if name.endswith("experts.5.up_proj.weight_scale"))
    tensors[name][0, 0] = float("nan")
    save_file(tensors, shard)
    errors = []
    for out, address in (("local", None), ("out", joined)):
        with pytest.raises(TensorError) as caught:
            quantize(source, tmp_path / out, load_recipe(MXFP4), ray=address)
        errors.append(str(caught.value))
    assert errors[0] == errors[1]
    assert sum("experts.5.up_proj" in job or "experts.5.gate_up" in job for _, job in cluster.faults.jobs()) <= LAYERS
    assert not parts(tmp_path / "out")


def test_a_source_that_changes_under_the_workers(place, joined, tmp_path):
    source = shutil.copytree(place / "source", tmp_path / "source")
    first = sorted(source.glob("model-*.safetensors"))[0]

    def touch(progress):
        os.utime(first)

    with pytest.raises((CheckpointError, MachineError), match=r"changed while it was read|a different source"):
        quantize(source, tmp_path / "out", load_recipe(MXFP4), ray=joined, progress=touch)
    assert not parts(tmp_path / "out")


def test_what_cannot_be_spread_is_refused(place, tmp_path):
    for recipe, options, words in (
        (load_recipe(MXFP4), {"device": "cuda"}, "omit --ray or --device"),
        (load_recipe("kimi-k2.6-nvfp4-gptq"), {}, "omit --ray: this recipe runs on one machine"),
    ):
        with pytest.raises(UsageError, match=words):
            quantize(place / "source", tmp_path / "out", recipe, ray="local", **options)
        assert not (tmp_path / "out").exists()
