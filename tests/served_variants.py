"""kimi-mini in every format that an engine can load, for tests that serve, compare and damage it."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from halfbyte.calibrate.datasets import with_data
from halfbyte.checkpoint.folder import open_checkpoint
from halfbyte.engine.pipeline import quantize
from halfbyte.families.model import describe
from halfbyte.plan.prune_plan import LayerChoice, PrunePlan
from halfbyte.plan.pruned import router_shape
from halfbyte.prune.options import recipe_of_plan
from halfbyte.recipe.load import load_recipe

REPOSITORY = Path(__file__).parents[1]
KIMI_MINI = REPOSITORY / "models" / "kimi-mini"
DATA = f"news={REPOSITORY / 'data' / 'calibration' / 'instructions.jsonl'}"
KEPT, HALF, QUARTER, BLOCK = 28, 16, 8, 128  # of 32 experts
_NO_KV = ["quantize.kv_cache=null", "quantize.kv_scale_min=null"]
_MODELOPT = ["quantize.kv_cache=none", "quantize.kv_scale_min=null"]
_PATTERNS = '["re:.*self_attn.*", "re:.*lm_head.*", "re:.*vision_tower.*", "re:.*mm_projector.*"]'
_AS_CT = ["quantize.config.producer_version=null", f"quantize.config.ignore_patterns={_PATTERNS}"]
_CALIBRATED = "calibrate.sequence_length=64"
WAFER = "kimi-k2.6-nvfp4-wafer"  # routed and shared experts and the dense layer: fused linears are quantized too


def _made(recipe: str, *overrides: str, data: bool = False, layers: int | None = None) -> Callable[[Path], None]:
    def make(out: Path) -> None:
        chosen = load_recipe(recipe, overrides)
        quantize(KIMI_MINI, out, with_data(chosen, [DATA], 16) if data else chosen, layers=layers)

    return make


def _pruned(kept: int) -> Callable[[Path], None]:
    """NVFP4 of the experts chosen by REAP."""

    def make(out: Path) -> None:
        fewer = out.with_name(f"{out.name}-int4")
        recipe = load_recipe("kimi-k2.6-nvfp4-reap192", [f"prune.keep={kept}", "calibrate.sequence_length=128"])
        quantize(KIMI_MINI, fewer, with_data(recipe, [DATA], 64))
        quantize(fewer, out, with_data(load_recipe(WAFER, [*_MODELOPT, _CALIBRATED]), [DATA], 16))
        shutil.rmtree(fewer)

    return make


def _fp8_block(out: Path) -> None:
    """Routed experts as in DeepSeek's and Kimi-K2-Instruct's releases; halfbyte only reads this format."""
    import torch
    from safetensors.torch import load_file, save_file

    twin = out.with_name(f"{out.name}-bf16")
    quantize(KIMI_MINI, twin, load_recipe("kimi-k2.6-bf16"))
    shutil.copytree(twin, out)
    shutil.rmtree(twin)
    index = {"metadata": {}, "weight_map": {}}
    for shard in sorted(out.glob("*.safetensors")):
        tensors = load_file(shard)
        for name in [name for name in tensors if ".mlp.experts." in name]:
            weight = tensors[name].float()
            blocks = tuple(-(-size // BLOCK) for size in weight.shape)
            scale = torch.empty(blocks)
            for i in range(blocks[0]):
                for j in range(blocks[1]):
                    part = weight[i * BLOCK : (i + 1) * BLOCK, j * BLOCK : (j + 1) * BLOCK]
                    scale[i, j] = part.abs().max() / 448
                    part /= scale[i, j]
            tensors[name] = weight.to(torch.float8_e4m3fn)
            tensors[f"{name}_scale_inv"] = scale
        save_file(tensors, shard)
        index["weight_map"] |= dict.fromkeys(tensors, shard.name)
    (out / "model.safetensors.index.json").write_text(json.dumps(index))
    config = json.loads((out / "config.json").read_text())
    names = [name.removesuffix(".weight") for name in index["weight_map"] if name.endswith(".weight")]
    ignored = [name for name in names if ".mlp.experts." not in name]  # vLLM takes all others for quantized
    config["quantization_config"] = {
        "quant_method": "fp8",
        "activation_scheme": "dynamic",
        "fmt": "e4m3",
        "weight_block_size": [BLOCK, BLOCK],
        "modules_to_not_convert": sorted(ignored),
    }
    (out / "config.json").write_text(json.dumps(config, indent=2))


VARIANTS: dict[str, Callable[[Path], None]] = {
    "int4": lambda out: shutil.copytree(KIMI_MINI, out) and None,
    "bf16": _made("kimi-k2.6-bf16"),
    "fp8-channel": _made("kimi-k2.6-fp8-reference"),
    "fp8-block": _fp8_block,
    "nvfp4-modelopt": _made(WAFER, *_MODELOPT, _CALIBRATED, data=True),
    "nvfp4-two-layers": _made(WAFER, *_MODELOPT, _CALIBRATED, data=True, layers=2),
    "nvfp4-compressed-tensors": _made(WAFER, "quantize.format=nvfp4_ct", *_NO_KV, *_AS_CT, _CALIBRATED, data=True),
    "nvfp4a16": _made("kimi-k2.6-nvfp4a16"),
    "mxfp4-quark": _made("kimi-k2.6-mxfp4-wafer"),
    "mxfp4-compressed-tensors": _made(
        "kimi-k2.6-nvfp4a16", "quantize.format=mxfp4_ct", "quantize.scales=even", "quantize.activations=dynamic"
    ),
    "nvfp4-pruned": _pruned(KEPT),
    "nvfp4-half-pruned": _pruned(HALF),
    "nvfp4-quarter-pruned": _pruned(QUARTER),
}


def prune_at_random(folder: Path, keep: int, seed: int) -> Path:
    """Write the BF16 twin of kimi-mini with random experts, different in each layer; return its folder."""
    checkpoint, dice = open_checkpoint(KIMI_MINI), random.Random(seed)
    model = describe(checkpoint)
    layers = {at: LayerChoice(tuple(sorted(dice.sample(range(model.experts), keep)))) for at in model.moe_layers}
    plan = PrunePlan(router=router_shape(model, checkpoint.config), layers=layers, rule=None)
    quantize(KIMI_MINI, folder / "pruned", recipe_of_plan(plan, "layers"), prune_plan=plan)
    quantize(folder / "pruned", folder / "bf16", load_recipe("kimi-k2.6-bf16"))
    return folder / "bf16"


def kept_or(folder: Path) -> Path:
    """Return the folder in HALFBYTE_VARIANTS, which keeps variants between test runs, or this one."""
    return Path(os.environ.get("HALFBYTE_VARIANTS", folder))


def make_variant(name: str, folder: Path) -> Path:
    """Write a variant below a folder unless it exists; return its path."""
    out = kept_or(folder) / name
    if not (out / "config.json").is_file():
        VARIANTS[name](out)
    return out


def change_tensors(folder: Path, edit: Callable[[dict[str, Any]], None]) -> None:
    """Change the tensors of each shard by name, and the index accordingly."""
    from safetensors.torch import load_file, save_file

    index = folder / "model.safetensors.index.json"
    weight_map: dict[str, str] = {}
    for shard in sorted(folder.glob("*.safetensors")):
        tensors = load_file(shard)
        edit(tensors)
        save_file(tensors, shard)
        weight_map |= dict.fromkeys(tensors, shard.name)
    if index.is_file():
        index.write_text(json.dumps(json.loads(index.read_text()) | {"weight_map": weight_map}))
