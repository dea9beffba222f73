"""Calibrated checkpoints: bit-equal to ModelOpt's, bit-equal after resuming, and rejected if they would be wrong."""

import importlib
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from scale_ties import relative_gap

from halfbyte.calibrate import stream
from halfbyte.calibrate.token_rows import Rows
from halfbyte.engine.pipeline import quantize
from halfbyte.recipe.load import load_recipe

GOLDEN = Path(__file__).parents[1] / "golden"
# What ModelOpt calls its recipes, and ours. Its newest version shares one input scale in a layer.
RECIPES = {
    "mlp_max": ("kimi-k2.6-nvfp4-wafer", ["quantize.kv_scale_min=null"]),
    "experts_mse": ("kimi-k2.7-code-nvfp4-decart", []),
    "default_max": (
        "kimi-k2.6-nvfp4-wafer",
        ["quantize.kv_scale_min=null", "roles.attention=quantize", "quantize.config.ignore_patterns=[lm_head]"],
    ),
}
PER_LAYER = [
    "quantize.input_scale.per=layer",
    "quantize.input_scale.min_tokens=null",
    "quantize.input_scale.backstop=null",
]


TIES_OF_THE_SWEEP = 15  # blocks of the INT4 golden on which two scales have exactly the same error


def tensors_of(folder: Path) -> dict[str, torch.Tensor]:
    return {name: tensor for path in folder.glob("*.safetensors") for name, tensor in load_file(path).items()}


def fused(module: str) -> list[str]:
    """Return the linears that share a tensor scale with this one."""
    if module.endswith("down_proj"):
        return [module]
    return [f"{module.rpartition('.')[0]}.{name}" for name in ("gate_proj", "up_proj")]


@pytest.fixture(scope="module")
def modules():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(GOLDEN)
        yield importlib.import_module("calibrated_checkpoint"), importlib.import_module("checkpoint")


def golden(version: str) -> dict:
    return json.loads((GOLDEN / f"modelopt-calibrated-{version}.json").read_text())["models"]


def rows_of(ids, real) -> Rows:
    """Return the golden tokens as hf_ptq pads them."""
    shape = ids.shape
    documents = np.where(real, np.arange(len(ids))[:, None], -1).astype(np.int32)
    return Rows(
        tokens=ids.astype(np.int32),
        real=real,
        positions=np.broadcast_to(np.arange(shape[1], dtype=np.int32), shape).copy(),
        documents=documents,
        domains=np.where(real, 0, -1).astype(np.int16),
        names=("golden",),
        left_padded=True,
    )


@pytest.fixture
def golden_rows(modules, monkeypatch):
    """Calibrate with the golden tokens, independent of the recipe."""
    rows = rows_of(*modules[0].tokens())
    monkeypatch.setattr(stream, "make_rows", lambda *_: rows)
    monkeypatch.setattr(stream, "load_vocabulary", lambda _: type("Vocabulary", (), {"named": {}}))
    return rows


def made(modules, tmp_path, storage, name, overrides):
    calibrated, checkpoint = modules
    source = calibrated.write(tmp_path / "source", storage)
    quantize(source, tmp_path / "out", load_recipe(name, overrides), verify_source=False)
    return checkpoint.contents(tmp_path / "out")


def differences(ours: dict, theirs: dict) -> set[str]:
    assert ours.keys() == theirs.keys()
    return {name for name in ours if ours[name] != theirs[name]}


@pytest.mark.parametrize(
    ("storage", "model", "recipe"),
    [
        ("bf16", "bf16", "mlp_max"),
        ("bf16", "bf16", "experts_mse"),
        ("bf16", "bf16", "default_max"),
        ("int4-decoded", "int4", "mlp_max"),
        ("int4", "int4", "mlp_max"),
    ],
)
def test_every_exported_tensor_equals_modelopts(modules, golden_rows, tmp_path, storage, model, recipe):
    name, overrides = RECIPES[recipe]
    ours = made(modules, tmp_path, storage, name, [*overrides, *PER_LAYER])
    assert differences(ours, golden("0.47.0")[model]["recipes"][recipe]["tensors"]) == set()


@pytest.mark.parametrize("storage", ["int4-decoded", "int4"])
def test_the_sweep_differs_only_where_two_scales_lose_the_same(modules, golden_rows, tmp_path, storage):
    """Weights on an INT4 grid have real ties; ModelOpt's FP32 sums break them by rounding, ours take the smaller."""
    name, overrides = RECIPES["experts_mse"]
    ours = made(modules, tmp_path, storage, name, [*overrides, *PER_LAYER])
    record = golden("0.47.0")["int4"]["recipes"]["experts_mse"]
    different = differences(ours, record["tensors"])
    assert {tensor.rpartition(".")[2] for tensor in different} == {"weight", "weight_scale"}
    written = tensors_of(tmp_path / "out")
    weights = tensors_of(modules[0].write(tmp_path / "decoded", "int4-decoded"))
    ties = 0
    for tensor in sorted(name for name in different if name.endswith("weight_scale")):
        module = tensor.rpartition(".")[0]
        mine = written[tensor].view(torch.uint8).numpy()
        theirs = np.frombuffer(bytes.fromhex(record["weight_scales"][tensor]), np.uint8).reshape(mine.shape)
        blocks = weights[f"{module}.weight"].float().numpy().reshape(*mine.shape, 16)
        amax = max(float(weights[f"{other}.weight"].abs().max()) for other in fused(module))
        for at in map(tuple, np.argwhere(mine != theirs)):
            assert relative_gap(blocks[at], amax, int(mine[at]), int(theirs[at])) == 0, (tensor, at)
            assert mine[at] < theirs[at], (tensor, at)
            ties += 1
    assert ties == TIES_OF_THE_SWEEP
