"""Calibrated runs from every stored format, in one pass or from statistics: complete, audited, same bytes."""

import contextlib
import json
import time
from pathlib import Path

import numpy as np
import pytest
from calibratable import (
    DECART,
    NVIDIA,
    REPOSITORY,
    SHORT,
    WAFER,
    Launcher,
    arguments,
    digests,
    is_running,
    small,
    texts,
)
from pico import KINDS

from halfbyte.audit.run import audit
from halfbyte.calibrate.datasets import with_data
from halfbyte.calibrate.store import read_stats
from halfbyte.checkpoint.folder import open_checkpoint
from halfbyte.checkpoint.reader import Reader
from halfbyte.engine.calibrate import calibrate
from halfbyte.engine.pipeline import quantize
from halfbyte.families.model import describe
from halfbyte.recipe.load import load_recipe

RUNNABLE = [kind for kind in KINDS if kind != "qwen3-moe"]
ROLES = {
    WAFER: {"routed_experts", "shared_experts", "dense_mlp"},
    DECART: {"routed_experts"},
    NVIDIA: {"routed_experts"},
}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return texts(tmp_path_factory.mktemp("data") / "texts.jsonl")


def rules(name, data, source, *sets, samples=6):
    """Return a recipe on local texts; quantized tensors that would be kept are decoded, as configs require."""
    model, recipe = describe(open_checkpoint(source)), load_recipe(name)
    stored = {linear.role for linear in model.linears.values() if linear.format != "bf16"}
    decoded = [f"roles.{role}=bf16" for role in sorted(stored) if recipe.roles[role] == "keep"]
    return with_data(load_recipe(name, [*decoded, SHORT, *sets]), [f"news={data}"], samples)


def scalars(folder, suffix):
    """Return every tensor of a folder with this name suffix, as a number."""
    checkpoint = open_checkpoint(folder)
    with Reader(checkpoint) as reader:
        found = {name: info for name, info in checkpoint.tensors.items() if name.endswith(suffix)}
        return {name: float(reader.tensor(info).reshape(-1)[0]) for name, info in found.items()}


def contents(folder):
    checkpoint = open_checkpoint(folder)
    with Reader(checkpoint) as reader:
        return {name: (info.dtype, info.shape, reader.raw(info).tobytes()) for name, info in checkpoint.tensors.items()}


def assert_complete(out, recipe):
    """Check that every quantized linear has an input scale, equal for gate and up, and that the audit passes."""
    scales = scalars(out, ".input_scale")
    linears = describe(open_checkpoint(out)).linears.values()
    wanted = {f"{linear.module}.input_scale" for linear in linears if linear.role in ROLES[recipe]}
    assert scales.keys() == wanted
    assert all(np.isfinite(scale) and scale > 0 for scale in scales.values())
    assert {
        name: scale for name, scale in scales.items() if scale != scales[name.replace("up_proj", "gate_proj")]
    } == {}


@pytest.mark.parametrize("recipe", ROLES)
@pytest.mark.parametrize("kind", RUNNABLE)
def test_every_source_and_recipe(tmp_path, data, kind, recipe):
    """The decoded twin of a source gives the same checkpoint: layers are measured on their decoded weights."""
    source = small(tmp_path / "source", kind, experts=6)
    quantize(source, tmp_path / "out", rules(recipe, data, source), verify_source=False)
    assert_complete(tmp_path / "out", recipe)
    swept = recipe == DECART and kind != "int4-k2.6"  # whose repetition by the exact search takes seconds
    found = audit(tmp_path / "out", against=source, sample=0 if swept else 1)
    assert not found.failed, found.sentences()
    kv = scalars(tmp_path / "out", "_scale")
    kv = {name: scale for name, scale in kv.items() if name.endswith((".k_scale", ".v_scale"))}
    assert len(kv) == (6 if recipe == WAFER else 0)  # the others declare a cast, so that a source's own would be stale
    assert all(np.isfinite(scale) and scale > 0 for scale in kv.values())

    twin = tmp_path / "twin"
    decoded = [f"roles.{role}=bf16" for role in ("attention", "dense_mlp", "shared_experts", "routed_experts")]
    if kind != "bf16":
        quantize(source, twin, load_recipe("kimi-k2.6-bf16", decoded), verify_source=False)
        quantize(twin, tmp_path / "again", rules(recipe, data, twin), verify_source=False)
        again, once = contents(tmp_path / "again"), contents(tmp_path / "out")
        if kind == "nvfp4":  # a source's own KV scales stay; its twin has none, so that they are measured
            assert again.keys() == once.keys()
            again, once = ({name: found[name] for name in found if name not in kv} for found in (again, once))
        assert again == once


@pytest.mark.parametrize("sets", [(), ("shards=1MB",), ("shards=layers",)])
def test_statistics_give_what_one_pass_gives(tmp_path, data, sets):
    """Shards of a megabyte span layers here: 300 kB per layer."""
    source = small(tmp_path / "source", "int4-k2.6", experts=16, hidden=128, expert_width=96)
    recipe = rules(WAFER, data, source, *sets)
    quantize(source, tmp_path / "one", recipe, verify_source=False)
    calibrate(source, tmp_path / "stats", recipe)
    two = quantize(source, tmp_path / "two", recipe, stats=tmp_path / "stats", verify_source=False)
    assert digests(tmp_path / "one") == digests(tmp_path / "two")
    assert two.coverage is not None
    notes = [(tmp_path / name / "halfbyte/coverage.json").read_text() for name in ("one", "two")]
    assert notes[0] == notes[1]
    if sets == ("shards=1MB",):
        layers = {
            shard.name: {name.split(".layers.")[1].split(".")[0] for name in open_names(shard) if ".layers." in name}
            for shard in (tmp_path / "one").glob("*.safetensors")
        }
        assert len(layers) > 1
        assert any(len(found) > 1 for found in layers.values())


def open_names(shard):
    from safetensors import safe_open

    with safe_open(shard, "numpy") as file:
        return list(file.keys())


def test_one_calibration_serves_several_recipes(tmp_path, data):
    source = small(tmp_path / "source")
    calibrate(source, tmp_path / "stats", rules(WAFER, data, source))
    for recipe in (WAFER, DECART, NVIDIA):
        made = rules(recipe, data, source)
        quantize(source, tmp_path / f"{recipe}-one", made, verify_source=False)
        quantize(
            source, tmp_path / f"{recipe}-two", made, stats=tmp_path / "stats/stats.safetensors", verify_source=False
        )
        assert digests(tmp_path / f"{recipe}-one") == digests(tmp_path / f"{recipe}-two")


def test_the_first_layers_alone(tmp_path, data):
    """Two layers of four; their scales equal those of the complete model."""
    source = small(tmp_path / "source", layers=4)
    recipe = rules(WAFER, data, source)
    quantize(source, tmp_path / "all", recipe, verify_source=False)
    quantize(source, tmp_path / "two", recipe, layers=2, verify_source=False)
    assert_complete(tmp_path / "two", WAFER)
    whole = scalars(tmp_path / "all", ".input_scale")
    part = scalars(tmp_path / "two", ".input_scale")
    assert part == {name: scale for name, scale in whole.items() if int(name.split(".layers.")[1].split(".")[0]) < 2}
    assert json.loads((tmp_path / "two/config.json").read_text())["text_config"]["num_hidden_layers"] == 2
    calibrate(source, tmp_path / "stats", recipe)
    quantize(source, tmp_path / "given", recipe, layers=2, stats=tmp_path / "stats", verify_source=False)
    assert digests(tmp_path / "given") == digests(tmp_path / "two")


@pytest.mark.parametrize("rows", ["padded", "packed"])
def test_threads_change_no_bit(tmp_path, data, rows):
    source = small(tmp_path / "source", experts=8)
    recipe = rules(WAFER, data, source, f"calibrate.rows={rows}", samples=11 if rows == "padded" else 6)
    found = []
    for threads in (1, 2, 4):
        out = tmp_path / str(threads)
        quantize(source, out, recipe, threads=threads, verify_source=False)
        found.append((digests(out), (out / "halfbyte/stats/stats.safetensors").read_bytes()))
    assert found[0] == found[1] == found[2]


def test_experts_without_tokens_are_counted_and_helped(tmp_path, data):
    """Two samples do not reach 24 experts; those without tokens get the largest scale of their layer."""
    source = small(tmp_path / "source", experts=24)
    made = quantize(source, tmp_path / "out", rules(WAFER, data, source, samples=2), verify_source=False)
    assert made.coverage is not None
    summary = made.coverage.summary()
    assert summary["unseen_experts"] == summary["backstopped_experts"] > 0
    assert_complete(tmp_path / "out", WAFER)
    _, layers = read_stats(tmp_path / "out/halfbyte/stats")
    scales = scalars(tmp_path / "out", ".input_scale")
    for coverage in made.coverage.layers:
        experts = layers[coverage.layer].experts
        assert experts is not None
        at = f"language_model.model.layers.{coverage.layer}.mlp.experts"
        for expert in coverage.unseen:
            assert scales[f"{at}.{expert}.down_proj.input_scale"] == np.float32(experts.down_amax.max()) / np.float32(
                2688
            )
            assert scales[f"{at}.{expert}.up_proj.input_scale"] == np.float32(experts.input_amax.max()) / np.float32(
                2688
            )


def test_padding_of_packed_rows_decides_nothing(tmp_path, data):
    """Two tokenizers with different padding tokens: padding must not affect statistics."""
    found = []
    for pad in ("<|end|>", "<|pad|>"):
        source = small(tmp_path / pad.strip("<|>"), experts=12)
        words = json.loads((source / "tokenizer.json").read_text())
        words["added_tokens"].append({**words["added_tokens"][0], "content": "<|pad|>", "id": 97})
        (source / "tokenizer.json").write_text(json.dumps(words))
        (source / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|end|>", "pad_token": pad}))
        packed = ("calibrate.rows=packed", "calibrate.sequence_length=200")
        everywhere = ("quantize.input_scale.min_tokens=100000", "quantize.input_scale.backstop=all_experts")
        recipe = rules(WAFER, data, source, *packed, *everywhere, samples=2)
        calibrate(source, tmp_path / f"stats-{pad}", recipe)
        about, layers = read_stats(tmp_path / f"stats-{pad}")
        assert sum(about["domains"].values()) < 2 * 200  # so that there is padding
        assert all(stats.experts is None or stats.experts.all_down_amax.all() for stats in layers.values())
        found.append({at: {name: a.tobytes() for name, a in stats.tensors().items()} for at, stats in layers.items()})
    assert found[0] == found[1]


def test_a_command_on_the_demo_model(tmp_path, halfbyte):
    """kimi-mini with a few of its articles, on the command line: built, audited, and no expert is left out."""
    source, articles = REPOSITORY / "models/kimi-mini", REPOSITORY / "data/calibration/articles.jsonl"
    words = arguments(articles, samples=4, sets=("shards=1MB",))
    code, _, said = halfbyte("quantize", source, tmp_path / "out", *words)
    assert code == 0, said
    code, printed, said = halfbyte("audit", tmp_path / "out", "--against", source)
    assert code == 0, printed + said
    assert_complete(tmp_path / "out", WAFER)


def peak_nbytes(launcher, *argv):
    """Run a command; return its peak memory as recorded by the kernel."""
    process, peak = launcher.start(*argv, wait=True), 0
    while is_running(process):
        with contextlib.suppress(OSError, IndexError):
            status = Path(f"/proc/{process}/status").read_text()
            peak = int(status.partition("VmHWM:")[2].split()[0]) * 1024
        time.sleep(0.002)
    assert launcher.exit_code() == 0, launcher.words()
    return peak


def test_memory_does_not_grow_with_the_layers(tmp_path, data):
    """Twelve more layers, of 5 MB stored and 19 MB decoded each, cost less than eight of them stored."""
    launcher, peaks = Launcher(tmp_path), {}
    for layers in (3, 15):
        source = small(tmp_path / f"source-{layers}", layers=layers, experts=12, hidden=512, expert_width=512)
        words = arguments(data, samples=16, sets=("shards=1MB",))
        peaks[layers] = peak_nbytes(launcher, "quantize", source, tmp_path / f"out-{layers}", *words, "--threads", 2)
    launcher.close()
    assert peaks[15] - peaks[3] < 8 * 5e6, peaks
