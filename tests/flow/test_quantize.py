"""quantize end to end on pico checkpoints: every source format, every data-free recipe, killed and resumed."""

import contextlib
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from pico import KINDS, write_pico
from safetensors import safe_open

from halfbyte.checkpoint.folder import open_checkpoint
from halfbyte.checkpoint.reader import Reader
from halfbyte.engine.pipeline import plan, quantize
from halfbyte.errors import HalfbyteError, MachineError, UsageError
from halfbyte.families.linears import read_linear
from halfbyte.families.model import describe
from halfbyte.formats.codec import amax, decode, encode
from halfbyte.recipe.load import load_recipe, recipe_names

RECIPES = [
    "kimi-k2.6-mxfp4-wafer",
    "kimi-k2.6-mxfp4a16",
    "kimi-k2.6-nvfp4a16",
    "kimi-k2.6-fp8-reference",
    "kimi-k2.6-bf16",
]
WAFER = "kimi-k2.6-nvfp4-wafer"


def contents(folder):
    """Return (model, reader) of a consistent folder."""
    checkpoint = open_checkpoint(folder)
    return describe(checkpoint), Reader(checkpoint)


def digests(folder):
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.glob("*.safetensors"))}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("recipe", RECIPES)
def test_every_source_and_recipe(tmp_path, kind, recipe):
    source, out = tmp_path / "source", tmp_path / "out"
    write_pico(source, kind)
    before, read_before = contents(source)
    rules = load_recipe(recipe, decoded_if_kept(before, load_recipe(recipe)))
    quantize(source, out, rules)
    after, read_after = contents(out)
    with read_before, read_after:
        assert before.linears.keys() == after.linears.keys()
        for module, linear in after.linears.items():
            old = before.linears[module]
            action = rules.roles[linear.role]
            if action != "keep":  # input scales belong to the format that goes
                assert not linear.parts.keys() & {"input_scale", "input_global_scale"}
            was = read_linear(old, read_before)
            now = read_linear(linear, read_after)
            if action == "keep":
                assert linear.format == old.format
                for suffix, info in old.parts.items():
                    assert (read_before.raw(info) == read_after.raw(linear.parts[suffix])).all()
            elif action == "bf16":
                np.testing.assert_array_equal(now.tensors["weight"], decode(was))
            else:
                assert linear.format == rules.quantize.format
                fused = [m for m in before.linears if same_group(before, m, module)]
                shared = {"amax": max(amax(read_linear(before.linears[m], read_before)) for m in fused)}
                options = shared if "nvfp4" in linear.format else {}
                again = encode(was, linear.format, method=rules.quantize.scales, **options)
                for suffix, tensor in again.tensors.items():
                    np.testing.assert_array_equal(now.tensors[suffix], tensor)
        for name, (_, info) in before.plain.items():
            if name.endswith((".k_scale", ".v_scale")):  # of an FP8 KV cache that these recipes do not declare
                assert name not in after.plain
            else:
                assert (read_before.raw(info) == read_after.raw(after.plain[name][1])).all()


def decoded_if_kept(model, recipe):
    """Decode tensors that are quantized and kept, because configs define kept as BF16."""
    roles = {linear.role for linear in model.linears.values() if linear.format != "bf16"}
    return [f"roles.{role}=bf16" for role in sorted(roles) if recipe.roles[role] == "keep"]


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_kept_format_that_the_config_cannot_say_is_refused(tmp_path, recipe):
    # Also in the target's own format: the ignore list would call an FP8 tensor BF16.
    kind, format = (
        ("fp8-channel", "fp8_channel") if recipe == "kimi-k2.6-fp8-reference" else ("fp8-block-k2", "fp8_block")
    )
    write_pico(tmp_path / "source", kind)
    rules = load_recipe(recipe, ["roles.attention=keep"] if recipe == "kimi-k2.6-bf16" else [])
    with pytest.raises(HalfbyteError, match=rf"is stored as {format} and kept.*--set roles\.\w+=bf16"):
        quantize(tmp_path / "source", tmp_path / "out", rules)
    assert not (tmp_path / "out").exists()


def same_group(model, one, other):
    return model.family.fused_group(one) == model.family.fused_group(other)


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    folder = tmp_path_factory.mktemp("source")
    write_pico(folder, "int4-k2.6")
    return folder


def test_files_are_as_safetensors_writes_them(source, tmp_path):
    quantize(source, tmp_path / "out", load_recipe("kimi-k2.6-mxfp4-wafer"))
    from safetensors.torch import load_file, save_file

    for path in (tmp_path / "out").glob("*.safetensors"):
        save_file(load_file(path), tmp_path / "again.safetensors", metadata={"format": "pt"})
        assert path.read_bytes() == (tmp_path / "again.safetensors").read_bytes(), path.name


def test_config_index_and_other_files(source, tmp_path):
    out = tmp_path / "out"
    quantize(source, out, load_recipe("kimi-k2.6-mxfp4-wafer"))
    before, after = (json.loads((folder / "config.json").read_text()) for folder in (source, out))
    assert after.pop("quantization_config")["quant_method"] == "quark"
    assert before["text_config"].pop("quantization_config")["format"] == "pack-quantized"
    assert after == before
    assert list(after) == list(before)
    others = [path for path in source.rglob("*") if path.is_file() and path.suffix != ".safetensors"]
    assert len(others) > 5
    for path in others:
        if path.name not in ("config.json", "model.safetensors.index.json"):
            assert (out / path.relative_to(source)).read_bytes() == path.read_bytes()
    index = json.loads((out / "model.safetensors.index.json").read_text())
    sizes = {name: None for name in index["weight_map"].values()}
    total = 0
    for shard in sizes:
        with safe_open(out / shard, "numpy") as file:
            assert set(file.keys()) == {name for name, where in index["weight_map"].items() if where == shard}
    total = sum(info.nbytes for info in open_checkpoint(out).tensors.values())
    assert index["metadata"]["total_size"] == total


def test_bf16_leaves_no_quantization_block(source, tmp_path):
    quantize(source, tmp_path / "out", load_recipe("kimi-k2.6-bf16"))
    text = (tmp_path / "out" / "config.json").read_text()
    assert "quantization_config" not in text


def test_the_plan_is_what_is_written(source, tmp_path):
    made = plan(source, load_recipe("kimi-k2.6-nvfp4a16"))
    quantize(source, tmp_path / "out", load_recipe("kimi-k2.6-nvfp4a16"))
    written = open_checkpoint(tmp_path / "out")
    assert written.shards == {shard.name: shard.nbytes for shard in made.shards}
    assert list(written.tensors.values()) == [tensor for shard in made.shards for tensor in shard.tensors]
    assert json.loads((tmp_path / "out/halfbyte/plan.json").read_text())["fingerprint"] == made.fingerprint()


@pytest.mark.parametrize("threads", [1, 2, 7])
def test_threads_do_not_matter(source, tmp_path, threads):
    quantize(source, tmp_path / "a", load_recipe("kimi-k2.6-nvfp4a16"))
    quantize(source, tmp_path / "b", load_recipe("kimi-k2.6-nvfp4a16"), threads=threads)
    assert digests(tmp_path / "a") == digests(tmp_path / "b")


def test_shards_by_size(source, tmp_path):
    recipe = load_recipe("kimi-k2.6-mxfp4-wafer", ["shards=1MB"])
    object.__setattr__(recipe, "shards", "1MB")
    made = plan(source, recipe)
    assert len(made.shards) == 1  # a pico is smaller than a megabyte
    from halfbyte.plan.manifest import lay_out_shards

    limit = 20_000
    shards = lay_out_shards(made.jobs, limit)
    assert len(shards) > 5
    names = [tensor.name for shard in shards for tensor in shard.tensors]
    assert sorted(names) == sorted(tensor.name for shard in made.shards for tensor in shard.tensors)
    for shard in shards:
        payload = sum(tensor.nbytes for tensor in shard.tensors)
        assert payload <= limit or len(shard.tensors) == 1


def test_truncated_to_the_first_layers(source, tmp_path):
    quantize(source, tmp_path / "out", load_recipe("kimi-k2.6-mxfp4-wafer"), layers=2)
    model, _ = contents(tmp_path / "out")  # refuses a config that does not say two layers
    assert model.layers == 2


def test_running_again_makes_nothing_again(source, tmp_path):
    out = tmp_path / "out"
    first = quantize(source, out, load_recipe("kimi-k2.6-mxfp4-wafer"))
    times = {path: path.stat().st_mtime_ns for path in out.glob("*.safetensors")}
    again = quantize(source, out, load_recipe("kimi-k2.6-mxfp4-wafer"))
    assert (first.resumed, again.resumed) == (0, again.shards)
    assert times == {path: path.stat().st_mtime_ns for path in out.glob("*.safetensors")}


def test_a_damaged_shard_is_made_again(source, tmp_path):
    out = tmp_path / "out"
    quantize(source, out, load_recipe("kimi-k2.6-mxfp4-wafer"))
    whole = digests(out)
    victim = sorted(out.glob("*.safetensors"))[1]
    data = bytearray(victim.read_bytes())
    data[-1] ^= 1
    victim.write_bytes(data)
    again = quantize(source, out, load_recipe("kimi-k2.6-mxfp4-wafer"))
    assert again.resumed == again.shards - 1
    assert digests(out) == whole


def test_two_plans_do_not_share_a_folder(source, tmp_path):
    quantize(source, tmp_path / "out", load_recipe("kimi-k2.6-mxfp4-wafer"))
    with pytest.raises(UsageError, match=r"another plan: recipe, shards differ"):
        quantize(source, tmp_path / "out", load_recipe("kimi-k2.6-nvfp4a16"))
    with pytest.raises(UsageError, match=r"another plan: layers, shards differ"):
        quantize(source, tmp_path / "out", load_recipe("kimi-k2.6-mxfp4-wafer"), layers=2)


def test_folders_that_are_refused(source, tmp_path):
    recipe = load_recipe("kimi-k2.6-mxfp4-wafer")
    with pytest.raises(UsageError, match="is inside the source"):
        quantize(source, source / "out", recipe)
    with pytest.raises(UsageError, match="the output folder is the source"):
        quantize(source, source, recipe)
    assert not (source / "halfbyte").exists()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("mine")
    with pytest.raises(UsageError, match="is not empty"):
        quantize(source, tmp_path / "full", recipe)
    (tmp_path / "file").write_text("")
    with pytest.raises(HalfbyteError):
        quantize(source, tmp_path / "file" / "out", recipe)


def test_a_small_disk_is_refused_before_anything_is_written(source, tmp_path, monkeypatch):
    import shutil

    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1000))
    with pytest.raises(MachineError, match=r"the output needs .* [MG]B, the disk has .* free"):
        quantize(source, tmp_path / "out", load_recipe("kimi-k2.6-mxfp4-wafer"))
    assert not list((tmp_path / "out").glob("*.safetensors*"))


@pytest.mark.parametrize(
    ("recipe", "sets", "where"),
    [
        (WAFER, ["roles.shared_experts=bf16", "roles.dense_mlp=bf16"], "layers.0.mlp."),
        (WAFER, ["roles.shared_experts=bf16"], "layers.1.mlp.shared_experts."),
        (WAFER, ["quantize.config.ignore_patterns=[lm_head]"], "layers.0.self_attn."),
        (WAFER, ["quantize.config.ignore_patterns=['*']"], "layers.0.mlp."),
        ("kimi-k2.6-mxfp4-wafer", ["roles.shared_experts=quantize"], "layers.1.mlp.shared_experts."),
    ],
)
def test_a_list_that_contradicts_the_roles_is_refused_at_once(source, tmp_path, halfbyte, recipe, sets, where):
    """An engine would build modules by the list and fill them by the tensors: reported by `plan`, not only by the
    audit.
    """
    words = [word for change in sets for word in ("--set", change)]
    for command in (["quantize", source, tmp_path / "out"], ["plan", source, "--no-measure"]):
        code, _, said = halfbyte(*command, "-r", recipe, *words)
        assert code == 2, said
        assert said.startswith(f"✗ the roles and the ignore list of recipe '{recipe}' disagree: ")
        assert where in said.splitlines()[1]
        assert "so that they agree" in said
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("recipe", [name for name in recipe_names() if "reap" not in name])
@pytest.mark.parametrize("layers", [None, 2])
def test_lists_of_our_own_recipes_fit_their_roles(source, recipe, layers):
    plan(source, load_recipe(recipe), layers=layers)


SLOW = """
import sys, time
from pathlib import Path
import halfbyte.engine.runner as run
apply = run.apply
def slowly(*arguments):
    time.sleep(0.004)
    return apply(*arguments)
run.apply = slowly
from halfbyte.cli.main import main
main(["quantize", sys.argv[1], sys.argv[2], "-r", "kimi-k2.6-mxfp4-wafer", "--threads", "2"])
"""


def start(source, out):
    """Start the real command with a few milliseconds added to every job, so that there is time to kill it."""
    command = [sys.executable, "-c", SLOW, str(source), str(out)]
    return subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=os.environ)


def wait_for(condition, seconds=30):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.002)


def at_work(out, since):
    """Return whether a run started then has a partial shard; parts of earlier runs are older."""
    for part in out.glob("*.part"):
        with contextlib.suppress(FileNotFoundError):
            if part.stat().st_mtime >= since:
                return True
    return False


def test_sigkill_at_random_moments_loses_nothing(source, tmp_path):
    """Twenty kills, each resumed: the files equal those of an uninterrupted run."""
    quantize(source, tmp_path / "whole", load_recipe("kimi-k2.6-mxfp4-wafer"))
    rng, out, torn = random.Random(7), tmp_path / "out", 0
    for number in range(20):
        since = time.time()
        process = start(source, out)
        if number % 2:  # any moment, most of them before the first byte; or while shards grow
            time.sleep(rng.uniform(0, 1.5))
        else:
            wait_for(lambda p=process, t=since: at_work(out, t) or p.poll() is not None)
            time.sleep(rng.uniform(0, 0.03))
        process.send_signal(signal.SIGKILL)
        process.wait()
        torn += at_work(out, since)
        for path in out.glob("*.safetensors"):
            assert hashlib.sha256(path.read_bytes()).hexdigest() == digests(tmp_path / "whole")[path.name]
        if (out / "config.json").exists():  # it finished before the signal arrived: start again
            shutil.rmtree(out)
    assert torn >= 3, "too few kills hit a run at work: adapt the waiting times"
    done = start(source, out)
    assert done.wait(120) == 0, done.stderr.read()
    assert digests(out) == digests(tmp_path / "whole")
    assert not list(out.glob("*.part"))


def test_ctrl_c_stops_soon_and_says_how_to_go_on(source, tmp_path):
    out = tmp_path / "out"
    process = start(source, out)
    wait_for(lambda: list(out.glob("*.part")) or list(out.glob("*.safetensors")))
    process.send_signal(signal.SIGINT)
    begin = time.monotonic()
    code = process.wait(20)
    words = process.stderr.read()
    assert code == 130, words
    assert time.monotonic() - begin < 5
    assert "run the same command again to resume" in words
    assert "Traceback" not in words
    assert not list(out.glob("*.part"))
    assert not (Path(out) / "config.json").exists()
    assert start(source, out).wait(120) == 0
