"""GPTQ runs: the bytes equal the reference with the Hessians of a resident forward pass, also after a kill."""

import random
import shutil
import time

import numpy as np
import pytest
import torch
from calibratable import Launcher, arguments, digests, is_running, kill, small, texts, wait_until

from halfbyte.audit.run import audit
from halfbyte.calibrate.datasets import with_data
from halfbyte.calibrate.stream import DTYPE, Stream, prepare
from halfbyte.checkpoint.folder import open_checkpoint
from halfbyte.checkpoint.reader import CachingReader, Reader
from halfbyte.engine.calibrate import calibrate
from halfbyte.engine.pipeline import quantize
from halfbyte.errors import HalfbyteError
from halfbyte.families.linears import read_linear
from halfbyte.families.model import describe
from halfbyte.families.weights import Weights
from halfbyte.formats.codec import decode
from halfbyte.formats.reference import floats, gptq
from halfbyte.forward.positions import attention_inputs
from halfbyte.recipe.load import load_recipe

NAME = "kimi-k2.6-nvfp4-gptq"
SHORT = "calibrate.sequence_length=24"
LAYERS, EXPERTS = 4, 8


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gptq")
    texts(folder / "texts.jsonl", count=26)  # 24 packed rows, the last of them not full
    small(folder / "source", layers=LAYERS, experts=EXPERTS, hidden=128, expert_width=96)
    quantize(folder / "source", folder / "whole", recipe(folder), verify_source=False)
    return folder


def recipe(place, *sets, samples=24):
    return with_data(load_recipe(NAME, [SHORT, *sets]), [f"news={place / 'texts.jsonl'}"], samples)


def decoded(checkpoint, linear):
    with Reader(checkpoint) as reader:
        return floats.bf16_to_f32(decode(read_linear(linear, reader))).astype(np.float64)


def hessians_of(place):
    """Return the Hessian of the inputs of each expert of each layer, by loops over tokens."""
    checkpoint = open_checkpoint(place / "source")
    model = describe(checkpoint)
    prepared = prepare(checkpoint, LAYERS, recipe(place), {})
    found = {}
    with CachingReader(checkpoint) as reader:
        stream = Stream(prepared, Weights(model, reader), 1)
        stream.start()
        for layer in range(LAYERS):
            found[layer] = stream.through(layer).hessians
    return found


def test_bytes_are_the_references(place):
    source, out = (open_checkpoint(place / name) for name in ("source", "whole"))
    before, after = describe(source), describe(out)
    hessians = hessians_of(place)
    assert hessians[0] is None  # dense
    compared = 0
    for layer in range(1, LAYERS):
        shared = gptq.factor(hessians[layer].shared)
        for expert in range(EXPERTS):
            stem = f"language_model.model.layers.{layer}.mlp.experts.{expert}."
            own = gptq.factor(hessians[layer].by_expert.get(expert, np.zeros((96, 96))))
            weights = {name: decoded(source, before.linears[f"{stem}{name}_proj"]) for name in ("gate", "up", "down")}
            fused = max(np.abs(weights["gate"]).max(), np.abs(weights["up"]).max())
            for name, weight in weights.items():
                amax = np.abs(weight).max() if name == "down" else fused
                scale_2 = gptq.tensor_scale(np.float32(amax))
                packed, scale = gptq.compensate(weight, own if name == "down" else shared, scale_2)
                with Reader(out) as reader:
                    parts = after.linears[f"{stem}{name}_proj"].parts
                    np.testing.assert_array_equal(reader.tensor(parts["weight"]), packed)
                    np.testing.assert_array_equal(reader.tensor(parts["weight_scale"]).view(np.uint8), scale)
                    assert reader.tensor(parts["weight_scale_2"]) == scale_2
                compared += 1
    assert compared == (LAYERS - 1) * EXPERTS * 3


def test_the_outputs_error_is_smaller_than_the_sweeps(place, tmp_path):
    quantize(place / "source", tmp_path / "mse", recipe(place, "quantize.scales=mse"), verify_source=False)
    opened = {
        name: open_checkpoint(path)
        for name, path in (("source", place / "source"), ("ours", place / "whole"), ("mse", tmp_path / "mse"))
    }
    models = {name: describe(checkpoint) for name, checkpoint in opened.items()}
    losses = {"ours": 0.0, "mse": 0.0}
    for layer, hessians in hessians_of(place).items():
        for expert in range(EXPERTS if hessians else 0):
            module = f"language_model.model.layers.{layer}.mlp.experts.{expert}.gate_proj"
            exact = decoded(opened["source"], models["source"].linears[module])
            for name in losses:
                error = exact - decoded(opened[name], models[name].linears[module])
                losses[name] += float(np.einsum("nj,jk,nk->", error, hessians.shared, error))
    assert losses["ours"] < 0.6 * losses["mse"]


def test_hessians_are_those_of_real_tokens(place):
    """Padding does not count, and an expert's tokens are weighted by the squared router weight."""
    checkpoint = open_checkpoint(place / "source")
    model = describe(checkpoint)
    prepared = prepare(checkpoint, LAYERS, recipe(place), {})
    assert not prepared.rows.real.all()
    seen = {}
    with CachingReader(checkpoint) as reader:
        weights = Weights(model, reader)
        stream = Stream(prepared, weights, 1)
        stream.start()
        stream.through(0)
        before = stream.hidden.clone()
        found = stream.through(1).hessians
        stream.hidden = before
        seen["x"], seen["routed"] = _given(stream, prepared, weights)
        real = torch.from_numpy(prepared.rows.real.reshape(-1))
        x = seen["x"][real].double()
        torch.testing.assert_close(torch.from_numpy(found.shared), x.t() @ x, rtol=1e-12, atol=1e-12)
        expert = weights.experts(1)
        indices, gates = seen["routed"]
        for number in range(EXPERTS):
            gate, up, _ = expert(number)
            chosen = (indices == number) & real[:, None]
            tokens = chosen.any(1)
            if not tokens.any():
                assert number not in found.by_expert
                continue
            given = seen["x"][tokens]
            act = (torch.nn.functional.silu(given @ gate.t()) * (given @ up.t())).double()
            weighted = act * gates[chosen].double()[:, None]
            torch.testing.assert_close(
                torch.from_numpy(found.by_expert[number]), weighted.t() @ weighted, rtol=1e-2, atol=1e-6
            )


def _given(stream, prepared, weights):
    layer = prepared.text.decoder_layer(1, weights, DTYPE)
    rows = slice(0, len(prepared.rows.tokens))
    routed = layer.before_experts(
        layer.attention_part(stream.hidden, attention_inputs(prepared.text, prepared.rows, rows, DTYPE))
    )
    return routed.x, (routed.indices, routed.weights)


@pytest.mark.parametrize("threads", [1, 2])
def test_threads_change_nothing(place, tmp_path, threads):
    quantize(place / "source", tmp_path / "out", recipe(place), threads=threads, verify_source=False)
    assert digests(tmp_path / "out") == digests(place / "whole")


def test_killed_and_resumed(place, tmp_path_factory, tmp_path):
    launcher = Launcher(tmp_path_factory.mktemp("launcher"))
    argv = ["quantize", place / "source", tmp_path / "out"]
    argv += arguments(place / "texts.jsonl", recipe=NAME, samples=24)
    dice, struck = random.Random(3), 0
    for _ in range(8):
        process = launcher.start(*argv, slow=0.01)
        wait_until(lambda: "tokens in" in launcher.words())
        time.sleep(dice.uniform(0, 0.6))
        struck += is_running(process)
        kill(process)
        if (tmp_path / "out/config.json").exists():
            shutil.rmtree(tmp_path / "out")
    code, words = launcher.run(*argv)
    launcher.close()
    assert code == 0, words
    assert struck >= 5, "too few kills hit a run: adapt the waiting times"
    assert digests(tmp_path / "out") == digests(place / "whole")


def test_the_audit_holds_weights_to_their_source(place, tmp_path):
    found = {one.check: one for one in audit(place / "whole", against=place / "source", sample=EXPERTS * 2).findings}
    assert {name for name, one in found.items() if one.level == "bad"} == set()
    assert f"{(LAYERS - 1) * EXPERTS * 3} gptq linears near the source" in found["repeat"].text
    shutil.copytree(place / "whole", tmp_path / "out")
    swap(tmp_path / "out", "layers.1.mlp.experts.2.up_proj.weight", "layers.1.mlp.experts.3.up_proj.weight")
    found = {one.check: one for one in audit(tmp_path / "out", against=place / "source", sample=EXPERTS * 2).findings}
    assert found["repeat"].level == "bad"
    named = {line.partition(":")[0].rpartition("experts.")[2] for line in found["repeat"].examples}
    assert named == {"2.up_proj", "3.up_proj"}


def swap(out, one, other):
    """Swap two tensors."""
    checkpoint = open_checkpoint(out)
    infos = [checkpoint.tensors[f"language_model.model.{name}"] for name in (one, other)]
    with Reader(checkpoint) as reader:
        contents = [reader.raw(info).tobytes() for info in infos]
    for info, content in zip(infos, reversed(contents), strict=True):
        with (out / info.shard).open("r+b") as file:
            file.seek(info.begin)
            file.write(content)


def test_a_final_shard_that_went_is_made_again(place, tmp_path):
    """Its layer's Hessians were not kept, so earlier layers run again; finished shards stay unchanged."""
    shutil.copytree(place / "whole", tmp_path / "out")
    (tmp_path / "out/model-00003-of-000007.safetensors").unlink()
    kept = tmp_path / "out/model-00002-of-000007.safetensors"
    before = kept.stat().st_mtime_ns
    quantize(place / "source", tmp_path / "out", recipe(place), verify_source=False)
    assert digests(tmp_path / "out") == digests(place / "whole")
    assert kept.stat().st_mtime_ns == before


def test_statistics_are_not_enough(place, tmp_path):
    calibrate(place / "source", tmp_path / "stats", recipe(place))
    with pytest.raises(HalfbyteError, match="Hessians of expert inputs, which statistics files do not contain"):
        quantize(place / "source", tmp_path / "out", recipe(place), stats=tmp_path / "stats", verify_source=False)
    assert not (tmp_path / "out").exists()


def test_other_roles_are_swept(place, tmp_path):
    """With a wider scope, shared experts have the MSE sweep's bytes."""
    ignored = "quantize.config.ignore_roles=[head, dense_mlp, attention, vision, projector]"
    wide = ["roles.shared_experts=quantize", ignored]
    outs = {}
    for scales in ("gptq", "mse"):
        outs[scales] = tmp_path / scales
        quantize(place / "source", outs[scales], recipe(place, *wide, f"quantize.scales={scales}"), verify_source=False)
    name = "language_model.model.layers.1.mlp.shared_experts.gate_proj.weight"
    routed = "language_model.model.layers.1.mlp.experts.0.gate_proj.weight"
    same = {}
    for tensor in (name, routed):
        bytes_of = []
        for out in outs.values():
            checkpoint = open_checkpoint(out)
            with Reader(checkpoint) as reader:
                bytes_of.append(reader.raw(checkpoint.tensors[tensor]).tobytes())
        same[tensor] = bytes_of[0] == bytes_of[1]
    assert same == {name: True, routed: False}
