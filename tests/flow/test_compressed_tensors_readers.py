"""compressed-tensors' converter and transformers read our outputs in compressed-tensors' spelling with the right
values.
"""

import json

import numpy as np
import pytest
from pico import write_pico

pytest.importorskip("compressed_tensors", reason="comes with vLLM")

from halfbyte.engine.pipeline import quantize
from halfbyte.formats.codec import encode
from halfbyte.recipe.load import load_recipe

INT4 = ["quantize.format=int4", "quantize.scales=kimi", "quantize.activations=null"]
OUTPUTS = {
    "mxfp4a16": ("kimi-k2.6-mxfp4a16", []),
    "mxfp4 with quantized activations": ("kimi-k2.6-mxfp4a16", ["quantize.activations=dynamic"]),
    "nvfp4a16": ("kimi-k2.6-nvfp4a16", []),
    "fp8-reference": ("kimi-k2.6-fp8-reference", []),
    "int4": ("kimi-k2.6-mxfp4a16", INT4),
}
# Its release 0.17 asks MXFP4 for NVFP4's weight_global_scale; 0.20 does not, and converts these outputs.
CONVERTED = ["nvfp4a16", "fp8-reference", "int4"]
# transformers 5.19 drops weight_global_scale of NVFP4 experts.
LOADED = ["mxfp4a16", "mxfp4 with quantized activations", "fp8-reference", "int4"]


@pytest.fixture
def made(tmp_path):
    """Write a source of a kind; return an output by name, and its BF16 decoding by halfbyte."""

    def make(name, kind):
        recipe, changes = OUTPUTS[name]
        quantize(write_pico(tmp_path / "source", kind), tmp_path / "out", load_recipe(recipe, changes))
        quantize(tmp_path / "out", tmp_path / "decoded", load_recipe("kimi-k2.6-bf16"))
        return tmp_path / "out", tmp_path / "decoded"

    return make


def tensors(folder):
    """Return every tensor of a folder's shards, as its dtype and bytes."""
    import torch
    from safetensors.torch import load_file

    found = {}
    for shard in sorted(folder.glob("*.safetensors")):
        for name, tensor in load_file(shard).items():
            found[name] = (tensor.dtype, tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return found


@pytest.mark.parametrize("kind", ["int4-k2.6", "bf16", "qwen3-moe"])
@pytest.mark.parametrize("name", CONVERTED)
def test_the_converter_decodes_an_output_to_our_bytes(made, tmp_path, name, kind):
    from compressed_tensors.entrypoints.convert import convert_checkpoint
    from compressed_tensors.entrypoints.convert.converters.ct_dequantizer import CompressedTensorsDequantizer

    out, decoded = made(name, kind)
    convert_checkpoint(out, tmp_path / "theirs", CompressedTensorsDequantizer(out))
    assert tensors(tmp_path / "theirs") == tensors(decoded)


@pytest.mark.parametrize("name", LOADED)
def test_transformers_gives_the_logits_of_our_decode(made, name):
    """Every weight is found, none is left over, and no logit differs by a bit."""
    import torch
    from transformers import AutoModelForCausalLM

    logits = []
    for folder in made(name, "bf16"):
        path = folder / "config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "pad_token_id": 0}))  # the vocabulary is small
        model, report = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16, output_loading_info=True)
        assert not any(report.values()), report
        with torch.no_grad():
            logits.append(model.eval()(torch.arange(2, 14)[None]).logits)
    assert logits[0].abs().max() > 0.1
    assert torch.equal(logits[0], logits[1])


def test_nvfp4_of_experts_equals_each_tensors_own_encoding_unless_gate_and_up_share_a_scale(tmp_path):
    """What the recipe says of llm-compressor's `model_free_ptq`, which gives every tensor a scale of its own.

    tests/golden has compressed-tensors' own bytes for `encode` of a tensor by itself.
    """
    import torch
    from safetensors.torch import load_file

    source, out = write_pico(tmp_path / "source", "bf16", experts=8), tmp_path / "out"
    quantize(source, out, load_recipe("kimi-k2.6-nvfp4a16", ["quantize.scales=compressed-tensors"]))
    before = {name: tensor for shard in source.glob("*.safetensors") for name, tensor in load_file(shard).items()}
    after = {name: tensor for shard in out.glob("*.safetensors") for name, tensor in load_file(shard).items()}
    experts = [name.removesuffix(".weight") for name in before if ".mlp.experts." in name]
    different = set()
    for module in experts:
        bits = before[f"{module}.weight"].view(torch.uint16).numpy()
        alone = encode(bits, "nvfp4_ct", method="compressed-tensors").tensors
        for suffix, array in alone.items():
            written = after[f"{module}.{suffix}"].contiguous().reshape(-1).view(torch.uint8).numpy()
            if written.tobytes() != np.ascontiguousarray(array).tobytes():
                different.add(module)
    assert (len(different), len(experts)) == (15, 48)
    pairs = {module.rpartition(".")[0] for module in different}
    assert len(pairs) == len(different)  # of a pair, the one with the smaller maximum
    for pair in pairs:
        peaks = {leaf: before[f"{pair}.{leaf}.weight"].abs().max() for leaf in ("gate_proj", "up_proj")}
        assert f"{pair}.{min(peaks, key=peaks.__getitem__)}" in different
