"""Checkpoints as vLLM would meet them, without a weight: the config and the headers that a plan says it will write."""

import json
from pathlib import Path

from halfbyte.models.model import describe
from halfbyte.plan.engine_config import MODELOPT_FILE, modelopt_file, output_config
from halfbyte.plan.manifest import make_plan
from halfbyte.plan.pruned import first_experts
from halfbyte.recipe import load_recipe
from halfbyte.source.checkpoint import open_checkpoint
from halfbyte.source.example import example

KIMI_MINI = Path(__file__).parents[2] / "models" / "kimi-mini"
NO_PRODUCER = ["quantize.config.producer_version=null"]
KEPT = '["re:.*self_attn.*", "re:.*lm_head.*", "re:.*vision_tower.*", "re:.*mm_projector.*"]'
ALL_MLP = ["roles.shared_experts=quantize", "roles.dense_mlp=quantize", f"quantize.config.ignore_patterns={KEPT}"]
# Every format and spelling that a recipe can ask for, each with a shipped recipe's scope.
RECIPES = {
    "nvfp4 modelopt, wafer's scope": ("kimi-k2.6-nvfp4-wafer", []),
    "nvfp4 modelopt, decart's scope": ("kimi-k2.7-code-nvfp4-decart", []),
    "nvfp4 modelopt, nvidia's scope": ("kimi-k2.6-nvfp4-nvidia", []),
    "nvfp4 modelopt, compensated": ("kimi-k2.6-nvfp4-compensated", []),
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


def planned(source, recipe, *, layers=None, keep=None):
    """Return what `quantize` would write of a checkpoint: its config and the headers of its shards."""
    model = describe(source)
    kept = None if keep is None else first_experts(model, keep, layers)
    plan = make_plan(source, model, recipe, layers=layers, kept=kept)
    tensors = [(tensor.name, tensor.dtype, tensor.shape) for shard in plan.shards for tensor in shard.tensors]
    return {"config": output_config(plan), "modelopt_file": modelopt_file(plan), "tensors": tensors}


def stored(folder):
    """Return a checkpoint that lies on the disk."""
    checkpoint = open_checkpoint(folder)
    legacy = folder / MODELOPT_FILE
    return {
        "config": checkpoint.config,
        "modelopt_file": json.loads(legacy.read_text()) if legacy.is_file() else None,
        "tensors": [(tensor.name, tensor.dtype, tensor.shape) for tensor in checkpoint.tensors.values()],
    }


def kimi_mini():
    return open_checkpoint(KIMI_MINI)


def kimi_k26():
    return example("kimi-k2.6")


def recipe_of(kind):
    name, changes = RECIPES[kind]
    return load_recipe(name, changes)
