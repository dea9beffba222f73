"""A vLLM with the plugin agrees with `halfbyte compare`, for every format, with and without quantized activations.

Both compute in FP32 from the same shards, with a different summation order: hidden states differ by 2e-6 to 2e-5 after
a layer, log-probabilities by 5e-4 nats. With quantized activations such a difference occasionally moves a value across
the midpoint between two codes, and from there on it is a step of FP4 instead of FP32: 1e-5 to 1e-3 nats of KL. compare
differs from itself by as much when its embeddings move by 2e-6. Positions without such a code agree as they do without
quantization, and each quantized module is compared alone, on its inputs in the engine: experts bit for bit.
"""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from served_variants import KIMI_MINI, change_tensors, make_variant

pytestmark = pytest.mark.vllm

PROMPT = (
    "A box holds 12 red pens and 7 blue pens. How many pens are in 3 boxes? First count the pens in one box: "
    "12 + 7 = 19. Then 3 boxes have 19 * 3 = 57 pens."
)
ACTIVATIONS = ["nvfp4-modelopt", "nvfp4-compressed-tensors", "mxfp4-quark", "mxfp4-compressed-tensors", "nvfp4-pruned"]
WEIGHTS_ONLY = ["int4", "nvfp4a16", "fp8-channel", "fp8-block", "bf16"]
FORMATS = [*ACTIVATIONS, *WEIGHTS_ONLY]
CLOSE, CLOSE_KL = 2e-3, 1e-5  # nats; 5.0e-4 and 3e-7 were seen


@pytest.fixture(scope="module")
def tokens():
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(KIMI_MINI)(PROMPT)["input_ids"]


@pytest.fixture(scope="module")
def variants(tmp_path_factory):
    folder = tmp_path_factory.mktemp("variants")
    return {name: make_variant(name, folder) for name in FORMATS}


@pytest.fixture(scope="module")
def flipped(variants, tmp_path_factory):
    """The dense layer with one changed nibble."""
    out = tmp_path_factory.mktemp("flipped") / "nvfp4"
    shutil.copytree(variants["nvfp4-modelopt"], out)

    def flip(tensors):
        tensors["language_model.model.layers.0.mlp.gate_proj.weight"][3, 5] ^= 0x60

    change_tensors(out, flip)
    return out


@pytest.fixture(scope="module")
def served(variants, flipped, tokens, tmp_path_factory):
    """The engines' results, by job name."""
    folder = tmp_path_factory.mktemp("jobs")
    jobs = [{"name": name, "folder": str(path)} for name, path in variants.items()]
    jobs.append({"name": "off", "folder": str(variants["nvfp4-modelopt"]), "activations": "off"})
    jobs.append({"name": "flipped", "folder": str(flipped)})
    (folder / "jobs.json").write_text(json.dumps([{"kind": "logits", "tokens": tokens, **job} for job in jobs]))
    script = Path(__file__).with_name("emulated_jobs.py")
    done = subprocess.run([sys.executable, script, folder], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    found = {job["name"]: torch.load(folder / f"{job['name']}.pt") for job in jobs}
    failed = {name: result["error"] for name, result in found.items() if "error" in result}
    assert not failed, f"{failed}\n{done.stderr[-4000:]}"
    return found


@pytest.mark.parametrize("name", FORMATS)
def test_weights_only_is_the_streamed_forward(served, variants, tokens, name):
    from streamed import apart, log_probabilities

    largest, kl = apart(log_probabilities(variants[name], tokens), served[name]["weights_only"])
    print(f"{name}, weights only: at most {largest:.1e} nat apart, KL {kl:.1e}")
    assert largest < CLOSE
    assert abs(kl) < CLOSE_KL


@pytest.mark.parametrize("name", WEIGHTS_ONLY)
def test_without_activations_to_quantize_nothing_is_changed(served, name):
    assert torch.equal(served[name]["served"], served[name]["weights_only"])


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_with_activations_it_is_the_streamed_forward_but_for_a_few_codes(served, variants, tokens, name):
    from streamed import apart, by_position, log_probabilities

    expected = log_probabilities(variants[name], tokens, "as-served")
    largest, kl = apart(expected, served[name]["served"])
    alike, alike_without = (
        float((by_position(expected, served[name][which]) < CLOSE).double().mean())
        for which in ("served", "weights_only")
    )
    without = apart(expected, served[name]["weights_only"])[1]
    print(f"{name}: {alike:.0%} of positions alike, at most {largest:.1e} nat apart, KL {kl:.1e}; "
          f"without activations {alike_without:.0%} alike, KL {without:.1e}")  # fmt: skip
    assert alike > 0.1  # a code that moved early moves all that see it
    assert alike_without == 0
    assert kl < without / 10


@pytest.mark.parametrize("name", FORMATS)
def test_each_layer_of_experts_returns_the_same_bits(served, variants, name):
    from streamed import experts_again

    calls = {module: call for module, call in served[name]["calls"].items() if module.endswith(".experts")}
    assert len(calls) == (0 if name == "bf16" else 5)
    activations = "as-served" if name in ACTIVATIONS else "off"
    for module, call in calls.items():
        layer = int(module.split(".layers.")[1].partition(".")[0])
        assert torch.equal(experts_again(variants[name], layer, call, activations), call["out"]), module


@pytest.mark.parametrize("name", ["nvfp4-modelopt", "nvfp4-compressed-tensors"])
def test_each_other_linear_returns_the_same(served, variants, name):
    from streamed import linear_again

    calls = {module: call for module, call in served[name]["calls"].items() if not module.endswith(".experts")}
    assert len(calls) == 2 * 6  # gate_up and down, of the dense layer and of the shared experts of five
    for module, call in calls.items():
        parent, _, leaf = module.rpartition(".")
        names = [f"{parent}.{part}" for part in (("gate_proj", "up_proj") if leaf == "gate_up_proj" else (leaf,))]
        expected = linear_again(variants[name], names, call, "as-served")
        assert (expected - call["out"]).abs().max() < 1e-5 * expected.abs().max(), module


def test_the_environment_switches_activations_off(served):
    assert torch.equal(served["off"]["served"], served["nvfp4-modelopt"]["weights_only"])
    assert not torch.equal(served["off"]["served"], served["nvfp4-modelopt"]["served"])


def test_one_nibble_changes_what_is_served(served):
    from streamed import apart

    largest, _ = apart(served["nvfp4-modelopt"]["weights_only"], served["flipped"]["weights_only"])
    print(f"one nibble: {largest:.1e} nat")
    assert largest > 2 * CLOSE
