"""Errors of the plugin before and while vLLM loads, tested without vLLM."""

import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch
from served_variants import change_tensors

from halfbyte.checkpoint.folder import open_checkpoint
from halfbyte.errors import CheckpointError, UsageError
from halfbyte.families.model import describe
from halfbyte.formats import emulated_activations
from halfbyte.serve.vllm_plugin import hide_llvmlite_from_scan, register
from halfbyte.serve.vllm_plugin.packed_tensors import LoadedTensors, fake_of, kind_of, rows_and_columns
from halfbyte.serve.vllm_plugin.stored import (
    SWITCH,
    Stored,
    activations_wanted,
    refuse_disagreement,
    refuse_wrong_tensors,
)

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

EXPERT = "language_model.model.layers.1.mlp.experts.2"


@pytest.mark.parametrize("kind", ["int4-k2.6", "fp8-block-k2", "bf16", "nvfp4", "nvfp4_ct", "mxfp4", "mxfp4_ct"])
def test_a_whole_checkpoint_is_known_by_name(pico, kind):
    stored = Stored(pico(kind))
    name = "model.layers.1.mlp.experts.2.up_proj"
    name = name if kind in ("fp8-block-k2", "bf16") else f"language_model.{name}"
    linear = stored.quantized(name)
    assert (linear is None) == (kind == "bf16")
    assert stored.quantized("language_model.model.layers.1.mlp.gate") is None
    if linear is not None:
        wanted = {"nvfp4": "input_scale", "nvfp4_ct": "input_global_scale"}.get(kind)
        assert stored.input_scale_of(linear) == wanted
        stored.rename(lambda name: name.replace("up_proj", "other") if "up_proj" in name else None)
        assert stored.quantized(name.replace("up_proj", "other")) is linear
        assert stored.quantized(name) is None


@pytest.mark.parametrize(
    ("kind", "suffix", "said"),
    [
        ("nvfp4", "input_scale", "it has no input_scale"),
        ("nvfp4_ct", "input_global_scale", "it has no input_global_scale"),
        ("nvfp4", "weight_scale_2", "weight_scale_2 is missing"),
        ("mxfp4", "weight_scale", "weight_scale is missing"),
    ],
)
def test_a_missing_scale_is_refused(pico, kind, suffix, said):
    folder = pico(kind)
    change_tensors(folder, lambda tensors: tensors.pop(f"{EXPERT}.up_proj.{suffix}", None))
    with pytest.raises(CheckpointError, match=said) as caught:
        Stored(folder)
    assert f"{EXPERT}.up_proj" in str(caught.value)


def test_an_unused_scale_is_refused(pico):
    folder = pico("mxfp4")

    def edit(tensors):
        if f"{EXPERT}.up_proj.weight" in tensors:
            tensors[f"{EXPERT}.up_proj.input_scale"] = torch.tensor(0.5)

    change_tensors(folder, edit)
    with pytest.raises(CheckpointError, match="it has an unused input_scale"):
        Stored(folder)
    refuse_wrong_tensors(describe(open_checkpoint(pico("nvfp4"))), inputs_quantized=True)
    with pytest.raises(CheckpointError, match="it has an unused"):
        refuse_wrong_tensors(describe(open_checkpoint(pico("nvfp4"))), inputs_quantized=False)


def test_only_a_folder_is_emulated():
    with pytest.raises(UsageError, match="only a local folder") as caught:
        Stored(Path("moonshotai/Kimi-K2.6"))
    assert "hf download moonshotai/Kimi-K2.6" in str(caught.value)


def test_parts_of_a_fused_linear_are_stored_alike(pico):
    stored = Stored(pico("nvfp4"))
    gate, up = (f"{EXPERT}.{name}" for name in ("gate_proj", "up_proj"))
    assert stored.representative("m", [gate, up]) is stored.quantized(gate)
    with pytest.raises(CheckpointError, match="bf16 and nvfp4"):
        stored.representative("m", [gate, "language_model.model.layers.1.self_attn.o_proj"])


def test_config_and_shards_agree_both_ways():
    linear = SimpleNamespace(format="nvfp4")
    refuse_disagreement("m", declared=True, linear=linear)
    refuse_disagreement("m", declared=False, linear=None)
    with pytest.raises(CheckpointError, match="the shards have it unquantized; where: mm_projector"):
        refuse_disagreement("mm_projector.linear_1", declared=True, linear=None)
    with pytest.raises(CheckpointError, match=r"the shards have it in nvfp4; where: layers\.1"):
        refuse_disagreement("layers.1.mlp.experts", declared=False, linear=linear)


def deliver(delivered, skip=(), lost=()):
    given = []

    def load(param, tensor, name, shard_id, expert_id, return_success=False):
        given.append((expert_id, shard_id))
        return (expert_id, shard_id) not in lost

    loader = delivered.expert_loader("weight", load, {"w1": "gate_proj", "w3": "up_proj", "w2": "down_proj"})
    assert loader.supports_moe_loading
    param = torch.nn.Parameter(torch.zeros(1, dtype=torch.uint8), requires_grad=False)
    for expert in range(2):
        for shard in ("w1", "w2", "w3"):
            if (expert, shard) not in skip:
                loader(param, torch.zeros(1, dtype=torch.uint8), "w13_weight", shard_id=shard, expert_id=expert)
    return given


PARTS = [f"{expert}.{name}" for expert in range(2) for name in ("gate_proj", "up_proj", "down_proj")]


def test_complete_loads_pass():
    delivered = LoadedTensors("m")
    assert len(deliver(delivered)) == 6
    delivered.refuse_missing(PARTS, ["weight"])


@pytest.mark.parametrize("how", ["skip", "lost"])
def test_missing_tensors_are_named(how):
    delivered = LoadedTensors("layers.1.mlp.experts")
    deliver(delivered, **{how: [(1, "w3")]})
    with pytest.raises(CheckpointError, match=r"never loaded its weight and .*layers\.1\.mlp\.experts\.1\.up_proj"):
        delivered.refuse_missing(PARTS, ["weight"])
    with pytest.raises(CheckpointError, match=r"never loaded its weight_scale \(nor 6 others"):
        delivered.refuse_missing(PARTS, ["weight", "weight_scale"])


def test_another_dtype_is_not_cast():
    param = torch.nn.Parameter(torch.zeros(1, dtype=torch.uint8), requires_grad=False)
    loader = LoadedTensors("m").linear_loader("weight", lambda *_: None)
    with pytest.raises(CheckpointError, match=r"weight is torch\.float32, but its header declares torch\.uint8"):
        loader(param, torch.zeros(1))


def test_inputs_are_quantized_as_compare_does():
    x = torch.randn(5, 64, generator=torch.Generator().manual_seed(0))
    small, large = torch.tensor(0.001), torch.tensor(0.002)
    fake = fake_of("nvfp4", torch.stack([small, large]))
    assert torch.equal(fake(x), emulated_activations.nvfp4(x, large))
    fake = fake_of("nvfp4_ct", torch.stack([1 / small, 1 / large]))
    assert torch.equal(fake(x), emulated_activations.nvfp4(x, 1 / (1 / large)))
    assert torch.equal(fake_of("mxfp4_ct", None)(x), emulated_activations.mxfp4(x))
    assert fake_of("int4", None) is None


def test_the_activations_variable_has_two_values(monkeypatch):
    monkeypatch.delenv(SWITCH, raising=False)
    assert activations_wanted()
    monkeypatch.setenv(SWITCH, "off")
    assert not activations_wanted()
    monkeypatch.setenv(SWITCH, "no")
    with pytest.raises(UsageError, match="is 'no'"):
        activations_wanted()


@pytest.mark.parametrize("kind", ["int4-g64", "fp8-block-k2", "fp8-channel", "nvfp4", "nvfp4_ct", "mxfp4"])
def test_parameters_have_the_stored_shapes(pico, kind):
    from halfbyte.formats.registry import FORMATS

    linear = next(one for one in describe(open_checkpoint(pico(kind))).linears.values() if one.role == "routed_experts")
    for part in FORMATS[linear.format].tensors:
        if kind_of(part) not in ("scalar", "shape"):
            assert rows_and_columns(linear, part, *linear.shape) == linear.parts[part.suffix].shape


def test_the_scan_does_not_see_llvmlite_and_nothing_is_lost(monkeypatch):
    seen = []
    monkeypatch.setitem(sys.modules, "llvmlite.made_up", ModuleType("made_up"))
    before = dict(sys.modules)
    dispatcher = SimpleNamespace(_rebind_kernels=lambda overrides: seen.append((overrides, set(sys.modules))))
    hide_llvmlite_from_scan(dispatcher)
    once = dispatcher._rebind_kernels
    hide_llvmlite_from_scan(dispatcher)
    assert dispatcher._rebind_kernels is once
    dispatcher._rebind_kernels(["kernel"])
    assert seen[0][0] == ["kernel"]
    assert not [name for name in seen[0][1] if name.startswith("llvmlite")]
    assert dict(sys.modules) == before
    hide_llvmlite_from_scan(SimpleNamespace())  # another vLLM


def test_an_unsupported_vllm_starts_with_a_warning(monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "vllm", None)  # nothing can be imported from it
    monkeypatch.delitem(sys.modules, "vllm.model_executor.layers.quantization", raising=False)
    register()
    assert "halfbyte_emulate is not available" in caplog.text


def test_vllm_finds_the_plugin_by_its_entry_point():
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
    module, _, function = project["entry-points"]["vllm.general_plugins"]["halfbyte"].partition(":")
    assert callable(getattr(import_module(module), function))
