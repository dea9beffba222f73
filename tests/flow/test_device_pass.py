"""The CUDA backend, with Triton's interpreter if there is no GPU: the same bytes as on the CPU.

Triton decides at import whether it interprets, so these tests run in separate processes.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
from calibratable import REPOSITORY, SHORT, digests, small, texts
from safetensors.numpy import load_file

from halfbyte.calibrate.datasets import with_data
from halfbyte.checkpoint.folder import open_checkpoint
from halfbyte.checkpoint.reader import Reader
from halfbyte.engine.backends.cuda.placement import LEAN, needs_of, planned_tokens
from halfbyte.engine.pipeline import plan, quantize
from halfbyte.errors import UsageError
from halfbyte.families.model import describe
from halfbyte.machine.device_option import TWICE
from halfbyte.recipe.load import load_recipe

DEVICE = "cuda" if torch.cuda.is_available() else "cpu:0"
TWO = "cuda:0,cuda:0" if torch.cuda.is_available() else "cpu:0,cpu:0"
PRUNE = ("prune.method=reap", "prune.statistics=calibrate", "prune.keep=2", "prune.select=mean")
CASES = {
    "max": ("int4-k2.6", "kimi-k2.6-nvfp4-nvidia", ("quantize.scales=max",)),
    "mse, shards that span layers": ("fp8-block-k2", "kimi-k2.7-code-nvfp4-decart", ("shards=1MB",)),
    "packed": ("bf16", "kimi-k2.6-nvfp4-nvidia", ("calibrate.rows=packed", "quantize.scales=max")),
    "without data": ("nvfp4", "kimi-k2.6-mxfp4-wafer", ()),
    "fixed input scales": ("int4-k2.6", "kimi-k2.7-code-nvfp4-nvidia", ()),
    "pruned and encoded": ("int4-k2.6", "kimi-k2.6-nvfp4-nvidia", ("quantize.scales=max", *PRUNE)),
    "pruned and copied": ("nvfp4", "kimi-k2.6-nvfp4-reap192", ("prune.keep=2",)),
}
SHORT_OF_MEMORY = {
    "mse, groups of INT4": ("int4-k2.6", "kimi-k2.7-code-nvfp4-decart"),
    "max, groups through BF16": ("fp8-block-k2", "kimi-k2.6-nvfp4-wafer"),
}
SLOT = 8192  # bytes: two experts
_RUN = """
import sys, json
from pathlib import Path
from halfbyte.engine.backends.cuda import backend, forward, layer_loop, observe, placement, streams
from halfbyte.engine.pipeline import quantize
from halfbyte.plan.manifest import read_plan_file
source, out, plan, device, settings = sys.argv[1:]
settings = json.loads(settings)
if "slot" in settings:  # small ones: chunks, pieces and groups in a small model
    forward.CHUNK_TOKENS, forward.EXPERT_TOKENS = 64, 16
    streams.SLOT_NBYTES = streams._INTERPRETED_NBYTES = settings["slot"]
    layer_loop.KEEP_SECONDS = 0.0
if "sum_rows" in settings:  # parts and chunks of so many rows, of six tokens
    placement.SUM_ROWS = observe.SUM_ROWS = settings["sum_rows"]
    forward.CHUNK_TOKENS = 6 * settings["sum_rows"]
choose = backend.choose_mode
def said(*given):
    print("mode", mode := choose(*given), flush=True)
    return mode
backend.choose_mode = said
progress = lambda step: print(step.shard, flush=True)
recipe = read_plan_file(Path(plan)).recipe
memory = settings.get("memory")
quantize(Path(source), Path(out), recipe, device=device, device_memory=memory, verify_source=False, progress=progress)
"""


def recipe_for(source, data, name, sets):
    """Return a recipe on local texts; quantized tensors that would be kept are decoded, as configs require."""
    stored = {linear.role for linear in describe(open_checkpoint(source)).linears.values() if linear.format != "bf16"}
    plain = load_recipe(name)
    changes = [f"roles.{role}=bf16" for role in sorted(stored) if plain.roles[role] == "keep"]
    if plain.calibrate is None:
        return load_recipe(name, [*changes, *sets])
    return with_data(load_recipe(name, [*changes, SHORT, *sets]), [f"news={data}"], 5)


def start(source, out, plan_file, **settings):
    environment = os.environ | {"TRITON_INTERPRET": "1" if DEVICE != "cuda" else "0", "OMP_NUM_THREADS": "1"}
    device = settings.pop("device", DEVICE)
    command = [sys.executable, "-W", "ignore", "-c", _RUN, source, out, plan_file, device, json.dumps(settings)]
    return subprocess.Popen(
        list(map(str, command)),
        cwd=REPOSITORY,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(source, out, plan_file, **settings):
    process = start(source, out, plan_file, **settings)
    words, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors[-3000:]
    return words


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    """Sources of all used kinds, with texts."""
    made = {}

    def place(kind):
        if kind not in made:
            folder = tmp_path_factory.mktemp(kind)
            small(folder / "source", kind, layers=3, experts=4, hidden=64, expert_width=32)
            texts(folder / "texts.jsonl", count=16)
            made[kind] = folder
        return made[kind]

    return place


@pytest.mark.parametrize("case", CASES)
def test_bytes_are_the_cpus(places, tmp_path, case):
    kind, name, sets = CASES[case]
    folder = places(kind)
    recipe = recipe_for(folder / "source", folder / "texts.jsonl", name, sets)
    (tmp_path / "plan.json").write_text(json.dumps(plan(folder / "source", recipe).as_dict()))
    words = run(folder / "source", tmp_path / "device", tmp_path / "plan.json")
    stats = tmp_path / "device/halfbyte/stats" if recipe.calibrate else None
    quantize(folder / "source", tmp_path / "cpu", recipe, stats=stats, verify_source=False)
    assert digests(tmp_path / "device") == digests(tmp_path / "cpu")
    assert not list(tmp_path.rglob("*.part"))
    assert ("measured layer 3 of 3" in words) == (recipe.calibrate is not None)
    journal = (tmp_path / "device/halfbyte/journal.jsonl").read_text().split("\n")
    hashed = {line["shard"]: line["sha256"] for line in map(json.loads, filter(None, journal))}
    assert hashed.items() <= digests(tmp_path / "device").items()  # hashed from reused buffers
    ours, theirs = (qualities(tmp_path / name) for name in ("device", "cpu"))
    assert ours.keys() == theirs.keys()
    assert any(ours.values()) == (recipe.quantize is not None)
    assert all(ours[shard] == pytest.approx(lost, rel=1e-6) for shard, lost in theirs.items())


def qualities(out):
    """Return the encoding loss in each shard's journal line; 0 if nothing was encoded."""
    lines = (out / "halfbyte/journal.jsonl").read_text().split("\n")
    return {line["shard"]: line["sqnr_db"] or 0.0 for line in map(json.loads, filter(None, lines))}


@pytest.mark.parametrize("case", SHORT_OF_MEMORY)
def test_every_mode_gives_the_same(places, tmp_path, case):
    """Also for statistics: chunks and pieces are the same, wherever hidden states and outputs are stored."""
    kind, name = SHORT_OF_MEMORY[case]
    folder = places(kind)
    made = plan(folder / "source", recipe_for(folder / "source", folder / "texts.jsonl", name, ("shards=1MB",)))
    (tmp_path / "plan.json").write_text(json.dumps(made.as_dict()))
    words = run(folder / "source", tmp_path / "full", tmp_path / "plan.json", slot=SLOT)
    assert "mode full" in words
    need = needs_of(made, planned_tokens(made), SLOT)
    assert need.group < need.output
    words = run(folder / "source", tmp_path / "lean", tmp_path / "plan.json", slot=SLOT, memory=need.total(LEAN))
    assert "mode lean" in words
    assert digests(tmp_path / "lean") == digests(tmp_path / "full")
    stats = (tmp_path / mode / "halfbyte/stats/stats.safetensors" for mode in ("lean", "full"))
    assert len({path.read_bytes() for path in stats}) == 1
    quantize(
        folder / "source", tmp_path / "cpu", made.recipe, stats=tmp_path / "lean/halfbyte/stats", verify_source=False
    )
    assert digests(tmp_path / "lean") == digests(tmp_path / "cpu")


def test_too_little_memory_is_said_before_anything_is_written(places, tmp_path):
    folder = places("int4-k2.6")
    recipe = recipe_for(folder / "source", folder / "texts.jsonl", "kimi-k2.6-nvfp4-nvidia", ())
    (tmp_path / "plan.json").write_text(json.dumps(plan(folder / "source", recipe).as_dict()))
    process = start(folder / "source", tmp_path / "out", tmp_path / "plan.json", memory=10**9)
    _, errors = process.communicate(timeout=300)
    assert process.returncode
    assert "MachineError: this run needs at least" in errors
    assert "--device cpu" in errors
    assert not (tmp_path / "out").exists()


def test_gptq_gives_the_codes_of_the_cpu(places, tmp_path):
    """Except next to rounding boundaries: matrix products add in another order. Scales of tensors are equal."""
    folder = places("int4-k2.6")
    recipe = recipe_for(folder / "source", folder / "texts.jsonl", "kimi-k2.6-nvfp4-gptq", ())
    (tmp_path / "plan.json").write_text(json.dumps(plan(folder / "source", recipe).as_dict()))
    words = run(folder / "source", tmp_path / "device", tmp_path / "plan.json")
    assert "mode full" in words
    quantize(folder / "source", tmp_path / "cpu", recipe, verify_source=False)
    ours, theirs = (tensors(tmp_path / name) for name in ("device", "cpu"))
    assert ours.keys() == theirs.keys()
    for name, tensor in theirs.items():
        if "experts." in name and name.endswith((".weight", ".weight_scale")):
            assert (ours[name] == tensor).mean() > 0.99, name
        else:
            np.testing.assert_array_equal(ours[name], tensor, name)
    rounded = recipe_for(folder / "source", folder / "texts.jsonl", "kimi-k2.6-nvfp4-nvidia", ())
    quantize(folder / "source", tmp_path / "mse", rounded, verify_source=False)
    plain, name = tensors(tmp_path / "mse"), "language_model.model.layers.1.mlp.experts.0.up_proj.weight"
    assert (ours[name] == plain[name]).mean() < 0.9  # it is not rounding to nearest


def tensors(out):
    """Return all tensors of a checkpoint, as bytes."""
    checkpoint = open_checkpoint(out)
    with Reader(checkpoint, {}) as reader:
        return {name: reader.raw(info).view(np.uint8) for name, info in checkpoint.tensors.items()}


KILLED = {
    "full": ("kimi-k2.6-nvfp4-nvidia", (), False),
    "lean": ("kimi-k2.6-nvfp4-nvidia", (), True),
    "gptq": ("kimi-k2.6-nvfp4-gptq", (), False),
    "gptq, lean": ("kimi-k2.6-nvfp4-gptq", (), True),
    "pruned": ("kimi-k2.6-nvfp4-nvidia", PRUNE, False),
}


@pytest.mark.parametrize("case", KILLED)
def test_a_killed_run_goes_on(places, tmp_path, case):
    name, sets, short = KILLED[case]
    folder = places("int4-k2.6")
    recipe = recipe_for(folder / "source", folder / "texts.jsonl", name, ("shards=layers", *sets))
    made = plan(folder / "source", recipe)
    (tmp_path / "plan.json").write_text(json.dumps(made.as_dict()))
    memory = needs_of(made, planned_tokens(made), SLOT).total(LEAN)
    settings = {"slot": SLOT, "memory": memory} if short else {}
    run(folder / "source", tmp_path / "whole", tmp_path / "plan.json", **settings)
    process = start(folder / "source", tmp_path / "out", tmp_path / "plan.json", **settings)
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("model-"):  # the first final shard
            break
    process.send_signal(signal.SIGKILL)
    process.wait()
    time.sleep(0.1)
    with pytest.raises(UsageError, match="device differs"):
        quantize(folder / "source", tmp_path / "out", recipe, verify_source=False)
    finals = {path.name for path in (tmp_path / "out").glob("model-*.safetensors")}
    words = run(folder / "source", tmp_path / "out", tmp_path / "plan.json", **settings)
    assert finals
    assert ("mode lean" in words) == short
    assert not finals & {line for line in words.split("\n") if line.startswith("model-")}  # those are not made again
    assert digests(tmp_path / "out") == digests(tmp_path / "whole")
    assert not list((tmp_path / "out").rglob("*.part"))


@pytest.mark.parametrize("after", ["tokens in", "measured layer 2"])
def test_ctrl_c_ends_soon_and_leaves_nothing_half_written(places, tmp_path, after):
    folder = places("int4-k2.6")
    recipe = recipe_for(folder / "source", folder / "texts.jsonl", "kimi-k2.6-nvfp4-nvidia", ())
    (tmp_path / "plan.json").write_text(json.dumps(plan(folder / "source", recipe).as_dict()))
    process = start(folder / "source", tmp_path / "out", tmp_path / "plan.json")
    assert process.stdout is not None
    if after == "tokens in":  # before the first line: while the first layer comes or runs
        while not (tmp_path / "out/halfbyte/stats/calibration.json").exists():
            time.sleep(0.01)
    else:
        assert any(line.startswith(after) for line in process.stdout)
    process.send_signal(signal.SIGINT)
    begin = time.monotonic()
    _, errors = process.communicate(timeout=60)
    assert time.monotonic() - begin < 30
    assert "interrupted;" in errors
    assert not list((tmp_path / "out").rglob("*.part"))
    assert not (tmp_path / "out/config.json").exists()


def test_a_damaged_weight_is_named(places, tmp_path):
    """An infinite scale in one expert: one error, and no file that looks finished."""
    folder = places("int4-k2.6")
    recipe = recipe_for(folder / "source", folder / "texts.jsonl", "kimi-k2.6-nvfp4a16", ())
    (tmp_path / "plan.json").write_text(json.dumps(plan(folder / "source", recipe).as_dict()))
    source = tmp_path / "source"
    shutil.copytree(folder / "source", source)
    info = open_checkpoint(source).tensors["language_model.model.layers.1.mlp.experts.2.up_proj.weight_scale"]
    with (source / info.shard).open("r+b") as file:
        file.seek(info.begin)
        file.write(b"\x80\x7f")  # BF16 infinity
    process = start(source, tmp_path / "out", tmp_path / "plan.json")
    _, errors = process.communicate(timeout=300)
    assert process.returncode
    assert "layers.1.mlp.experts.2.up_proj" in errors
    assert "infinity" in errors
    assert not (tmp_path / "out/config.json").exists()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_no_gpu_is_said_before_anything_is_written(places, tmp_path):
    folder = places("int4-k2.6")
    command = [sys.executable, "-c", "from halfbyte.cli.main import main; main()", "quantize", folder / "source"]
    command += [tmp_path / "out", "-r", "kimi-k2.6-mxfp4-wafer", "--device", "cuda"]
    ended = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    assert ended.returncode == 3, ended.stderr
    assert "PyTorch detects no CUDA device" in ended.stderr
    assert not (tmp_path / "out").exists()


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """A plan, the output of two devices, and of one; each has at least two parts of the rows."""
    folder = tmp_path_factory.mktemp("shared")
    small(folder / "source", "bf16", layers=2, experts=3, hidden=32, expert_width=32)
    texts(folder / "texts.jsonl", count=16)
    recipe = load_recipe("kimi-k2.6-nvfp4-nvidia", ["shards=layers", "calibrate.sequence_length=6"])
    made = plan(folder / "source", with_data(recipe, [f"news={folder / 'texts.jsonl'}"], 7))
    (folder / "plan.json").write_text(json.dumps(made.as_dict()))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(TWICE, "1")
        processes = [
            start(folder / "source", folder / name, folder / "plan.json", device=device, sum_rows=2, slot=SLOT)
            for name, device in (("one", DEVICE), ("two", TWO))
        ]
        for process in processes:
            _, errors = process.communicate(timeout=300)
            assert process.returncode == 0, errors[-3000:]
        yield folder, made


def test_two_devices_share_rows_and_experts(shared, tmp_path):
    """Parts of the rows are the same, so counts and largest values are; sums of parts are added in another order."""
    folder, made = shared
    one, two = (load_file(folder / name / "halfbyte/stats/stats.safetensors") for name in ("one", "two"))
    assert one.keys() == two.keys()
    for name, array in one.items():
        if "sum_" in name:
            np.testing.assert_allclose(two[name], array, rtol=1e-12, atol=0)
        else:
            np.testing.assert_array_equal(two[name], array)
    about = json.loads((folder / "two/halfbyte/stats/calibration.json").read_text())
    assert about["device"] == f"{DEVICE} x2"
    stats = folder / "two/halfbyte/stats"
    quantize(folder / "source", tmp_path / "cpu", made.recipe, stats=stats, verify_source=False)
    assert digests(folder / "two") == digests(tmp_path / "cpu")
    ours, theirs = (qualities(out) for out in (folder / "two", tmp_path / "cpu"))
    assert any(ours.values())
    assert ours == pytest.approx(theirs, rel=1e-6)


def test_two_devices_go_on_after_a_kill_and_after_ctrl_c(shared, tmp_path):
    """With little memory too: hidden states on the host, and groups of experts for each device."""
    folder, made = shared
    need = needs_of(made, 4 * 6, SLOT, 2)
    settings = {"device": TWO, "sum_rows": 2, "slot": SLOT, "memory": need.total(LEAN)}
    out, given = tmp_path / "out", (folder / "source", tmp_path / "out", folder / "plan.json")
    for layer, signum in enumerate((signal.SIGINT, signal.SIGKILL)):
        process = start(*given, **settings)
        assert process.stdout is not None
        measured = next(line for line in process.stdout if line.startswith("measured"))
        assert measured.startswith(f"measured layer {layer + 1} of 2")  # from the hidden states that were kept
        process.send_signal(signum)
        _, errors = process.communicate(timeout=60)
        assert process.returncode
        if signum == signal.SIGINT:
            assert "interrupted;" in errors
            assert not list(out.rglob("*.part"))
    with pytest.raises(UsageError, match="device differs"):
        quantize(folder / "source", out, made.recipe, device=DEVICE, verify_source=False)
    words = run(*given, **settings)
    assert "mode lean" in words
    assert digests(out) == digests(folder / "two")
    stats = ((path / "halfbyte/stats/stats.safetensors").read_bytes() for path in (out, folder / "two"))
    assert len(set(stats)) == 1


def test_more_devices_than_parts_of_the_rows_are_refused(shared, tmp_path):
    folder, made = shared
    with pytest.raises(UsageError, match=r"7 rows of tokens cannot be split over 2 GPUs"):
        quantize(folder / "source", tmp_path / "out", made.recipe, device=TWO, verify_source=False)
    assert not (tmp_path / "out").exists()
