"""Checkpoints as vLLM would see them, without weights: the config and headers of a plan."""

import json
from dataclasses import replace
from pathlib import Path

from halfbyte.checkpoint.folder import Checkpoint
from halfbyte.checkpoint.headers import TensorSpec, lay_out
from halfbyte.families.kimi_k25.geometry import (
    KIMI_K26,
    ends,
    layer_linears,
    layer_others,
    release_config,
    release_shards,
    text_config,
)
from halfbyte.families.model import describe
from halfbyte.plan.manifest import make_plan
from halfbyte.plan.pruned import first_experts
from halfbyte.plan.quantization_config import MODELOPT_FILE, modelopt_file, output_config
from halfbyte.recipe.load import load_recipe

NO_PRODUCER = ["quantize.config.producer_version=null"]
KEPT = '["re:.*self_attn.*", "re:.*lm_head.*", "re:.*vision_tower.*", "re:.*mm_projector.*"]'
ALL_MLP = ["roles.shared_experts=quantize", "roles.dense_mlp=quantize", f"quantize.config.ignore_patterns={KEPT}"]
# Every format and spelling that a recipe can ask for, each with a shipped recipe's scope.
RECIPES = {
    "nvfp4 modelopt, wafer's scope": ("kimi-k2.6-nvfp4-wafer", []),
    "nvfp4 modelopt, decart's scope": ("kimi-k2.7-code-nvfp4-decart", []),
    "nvfp4 modelopt, nvidia's scope": ("kimi-k2.6-nvfp4-nvidia", []),
    "nvfp4 modelopt, gptq": ("kimi-k2.6-nvfp4-gptq", []),
    "nvfp4 modelopt, weights only": (
        "kimi-k2.6-nvfp4-nvidia",
        ["quantize.activations=none", "quantize.input_scale=null", "quantize.kv_cache=none", "calibrate=null"],
    ),
    "nvfp4 compressed-tensors, weights only": ("kimi-k2.6-nvfp4a16", []),
    "nvfp4 compressed-tensors, wafer's scope": (
        "kimi-k2.6-nvfp4-wafer",
        ["quantize.format=nvfp4_ct", "quantize.kv_cache=null", "quantize.kv_scale_min=null", *ALL_MLP, *NO_PRODUCER],
    ),
    "nvfp4 compressed-tensors, weights only, wafer's scope": ("kimi-k2.6-nvfp4a16", ALL_MLP),
    "mxfp4 quark": ("kimi-k2.6-mxfp4-wafer", []),
    "mxfp4 quark, weights only": ("kimi-k2.6-mxfp4-wafer", ["quantize.activations=none"]),
    "mxfp4 quark, all MLPs": ("kimi-k2.6-mxfp4-wafer", ALL_MLP),
    "mxfp4 compressed-tensors, all MLPs": (
        "kimi-k2.6-mxfp4-wafer",
        ["quantize.format=mxfp4_ct", *ALL_MLP, *NO_PRODUCER],
    ),
    "mxfp4 compressed-tensors": ("kimi-k2.6-mxfp4-wafer", ["quantize.format=mxfp4_ct", *NO_PRODUCER]),
    "mxfp4 compressed-tensors, weights only": ("kimi-k2.6-mxfp4a16", []),
    "int4 compressed-tensors": (
        "kimi-k2.6-mxfp4-wafer",
        ["quantize.format=int4", "quantize.scales=kimi", "quantize.activations=null", *NO_PRODUCER],
    ),
    "int4 compressed-tensors, all MLPs": (
        "kimi-k2.6-mxfp4-wafer",
        ["quantize.format=int4", "quantize.scales=kimi", "quantize.activations=null", *ALL_MLP, *NO_PRODUCER],
    ),
    "fp8 compressed-tensors, all MLPs": ("kimi-k2.6-fp8-reference", ALL_MLP),
    "fp8 compressed-tensors": ("kimi-k2.6-fp8-reference", []),
    "bf16": ("kimi-k2.6-bf16", []),
}


def planned(source, recipe, *, keep=None):
    """Return what `quantize` would write of a checkpoint: its config and the headers of its shards.

    `keep` is a number of experts, or the experts of each layer.
    """
    model = describe(source)
    kept = first_experts(model, keep, None) if isinstance(keep, int) else keep
    plan = make_plan(source, model, recipe, kept=kept)
    tensors = [(tensor.name, tensor.dtype, tensor.shape) for shard in plan.shards for tensor in shard.tensors]
    return {"config": output_config(plan), "modelopt_file": modelopt_file(plan), "tensors": tensors}


def stored(source):
    """Return a checkpoint unchanged."""
    legacy = source.root / MODELOPT_FILE
    return {
        "config": source.config,
        "modelopt_file": json.loads(legacy.read_text()) if legacy.is_file() else None,
        "tensors": [(tensor.name, tensor.dtype, tensor.shape) for tensor in source.tensors.values()],
    }


def imagined(config, specs):
    """Return a checkpoint that consists of headers only."""
    head, infos = lay_out(specs, "model.safetensors")
    tensors = {info.name: info for info in infos}
    return Checkpoint(Path("imagined"), config, tensors, {"model.safetensors": len(head)})


def relative(**numbers):
    """Return a relative of Kimi-K2.6 in INT4 with other numbers, as headers."""
    shape = replace(KIMI_K26, **numbers)
    return imagined(release_config(shape), [spec for specs in release_shards(shape).values() for spec in specs])


def fp8_block(**numbers):
    """Return a text model in DeepSeek's FP8 with a scale per 128 x 128 block, like the first K2 release."""
    shape = replace(KIMI_K26, vision_blocks=0, prefix="", **numbers)
    specs = list(ends(shape))
    for layer in range(shape.layers):
        specs += layer_others(shape, layer)
        for linear in layer_linears(shape, layer):
            blocks = (-(-linear.n // 128), -(-linear.k // 128))
            specs.append(TensorSpec(f"{linear.module}.weight", "F8_E4M3", (linear.n, linear.k)))
            specs.append(TensorSpec(f"{linear.module}.weight_scale_inv", "F32", blocks))
    fp8 = {"activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8", "weight_block_size": [128, 128]}
    return imagined({**text_config(shape), "model_type": "deepseek_v3", "quantization_config": fp8}, specs)


def recipe_of(kind):
    name, changes = RECIPES[kind]
    return load_recipe(name, changes)


def only_prune():
    return load_recipe("kimi-k2.6-nvfp4-reap192")
