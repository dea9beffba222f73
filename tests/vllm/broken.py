"""Copies of a small NVFP4 checkpoint with one defect each, which vLLM itself loads or crashes on silently."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

LAYER = "language_model.model.layers.1.mlp.experts"
DENSE = "language_model.model.layers.0.mlp"
Tensors = dict[str, torch.Tensor]
Edit = Callable[[Tensors, dict[str, Any]], None]


def without(*ends: str) -> Edit:
    """Remove tensors whose names start with this prefix."""

    def edit(tensors: Tensors, config: dict[str, Any]) -> None:
        for name in [name for name in tensors if name.startswith(ends)]:
            del tensors[name]

    return edit


def with_value(name: str, value: float) -> Edit:
    def edit(tensors: Tensors, config: dict[str, Any]) -> None:
        tensors[name] = torch.full_like(tensors[name], value)

    return edit


def times(name: str, factor: float) -> Edit:
    def edit(tensors: Tensors, config: dict[str, Any]) -> None:
        tensors[name] = tensors[name] * factor

    return edit


def with_tensor(name: str, tensor: torch.Tensor) -> Edit:
    return lambda tensors, config: tensors.__setitem__(name, tensor)


def with_byte(name: str, byte: int) -> Edit:
    """Set one E4M3 scale to a bit pattern."""

    def edit(tensors: Tensors, config: dict[str, Any]) -> None:
        tensors[name].view(torch.uint8)[3, 1] = byte

    return edit


def one_expert_more(tensors: Tensors, config: dict[str, Any]) -> None:
    first = f"{LAYER}.0."
    number = config["text_config"]["n_routed_experts"]
    copies = {name.replace(first, f"{LAYER}.{number}."): tensors[name] for name in tensors if name.startswith(first)}
    tensors.update({name: tensor.clone() for name, tensor in copies.items()})


def ignore(change: Callable[[list[str]], list[str]]) -> Edit:
    def edit(tensors: Tensors, config: dict[str, Any]) -> None:
        block = config["quantization_config"]
        block["ignore"] = change(block["ignore"])

    return edit


# Defect -> how to create it, and the expected last line.
BROKEN: dict[str, tuple[Edit, str]] = {
    "no input scale, expert": (without(f"{LAYER}.7.up_proj.input_scale"), rf"no input_scale.*{LAYER}\.7\.up_proj"),
    "no input scale, linear": (without(f"{DENSE}.down_proj.input_scale"), rf"no input_scale.*{DENSE}\.down_proj"),
    "no tensor scale": (
        without(f"{LAYER}.7.up_proj.weight_scale_2"),
        rf"weight_scale_2 is missing.*{LAYER}\.7\.up_proj",
    ),
    "no block scales": (without(f"{DENSE}.up_proj.weight_scale"), rf"weight_scale.* missing.*{DENSE}\.up_proj"),
    "no expert": (without(f"{LAYER}.5."), "expert 5 is missing in layer 1"),
    "no projection": (without(f"{LAYER}.5.down_proj."), "expert 5 of layer 1 has no down_proj"),
    "too many experts": (one_expert_more, "layer 1 has an expert 32|each MoE layer has 33 experts"),
    "tensor scales differ, expert": (
        times(f"{LAYER}.7.up_proj.weight_scale_2", 1.5),
        rf"weight_scale_2 of gate_proj and up_proj differ.*{LAYER}\.7",
    ),
    "tensor scales differ, linear": (
        times(f"{DENSE}.gate_proj.weight_scale_2", 1.5),
        rf"weight_scale_2 of gate_proj and up_proj differ.*{DENSE}\.gate_up_proj",
    ),
    "input scales differ, expert": (
        times(f"{LAYER}.31.gate_proj.input_scale", 2),
        rf"input_scale of gate_proj and up_proj differ.*{LAYER}\.31",
    ),
    "input scales differ, linear": (
        times(f"{DENSE}.up_proj.input_scale", 2),
        rf"input_scale of gate_proj and up_proj differ.*{DENSE}\.gate_up_proj",
    ),
    **{
        f"input scale {value}": (
            with_value(f"{LAYER}.3.down_proj.input_scale", value),
            rf"its input_scale is {value:g}, which is not a valid scale.*{LAYER}\.3\.down_proj",
        )
        for value in (0.0, -0.5, float("nan"), float("inf"))
    },
    "tensor scale 0": (
        with_value(f"{DENSE}.down_proj.weight_scale_2", 0),
        rf"its weight_scale_2 is 0, which is not a valid scale.*{DENSE}\.down_proj",
    ),
    "block scale NaN": (
        with_byte(f"{LAYER}.3.up_proj.weight_scale", 0x7F),
        rf"weight_scale is nan.*{LAYER}\.3\.up_proj",
    ),
    "block scale negative": (
        with_byte(f"{LAYER}.3.up_proj.weight_scale", 0xB8),
        rf"weight_scale is -1.*{LAYER}\.3\.up_proj",
    ),
    "block scale zero": (with_byte(f"{LAYER}.3.up_proj.weight_scale", 0), rf"a weight_scale is 0.*{LAYER}\.3\.up_proj"),
    "ignored, but quantized": (
        ignore(lambda found: [*found, "*mlp.experts*"]),
        rf"ignore list in config.json covers this module.*nvfp4.*{LAYER}",
    ),
    "ignored, but quantized, linear": (
        ignore(lambda found: [*found, "*shared_experts*"]),
        r"ignore list in config.json covers this module.*nvfp4.*layers\.1\.mlp\.shared_experts\.gate_up_proj",
    ),
    "unquantized, but not ignored": (
        ignore(lambda found: [one for one in found if "self_attn" not in one]),
        r"shards have it unquantized.*layers\.0\.self_attn",
    ),
    "unquantized head, but not ignored": (
        ignore(lambda found: [one for one in found if "lm_head" not in one]),
        r"shards have it unquantized.*lm_head",
    ),
    "unquantized projector, but not ignored": (
        ignore(lambda found: [one for one in found if "mm_projector" not in one]),
        r"shards have it unquantized.*mm_projector\.linear_1",
    ),
    "left over in a linear": (
        with_tensor(f"{DENSE}.down_proj.input_global_scale", torch.ones(1)),
        rf"an unused input_global_scale.*{DENSE}\.down_proj",
    ),
    "left over in an expert": (
        with_tensor(f"{LAYER}.3.up_proj.weight_packed", torch.ones(1, 1, dtype=torch.uint8)),
        rf"weight_packed.*{LAYER}\.3\.up_proj",
    ),
    "left over, no linear": (
        with_tensor("language_model.model.layers.1.mlp.extra.table", torch.ones(3)),
        r"layers\.1\.mlp\.extra\.table",
    ),
}


def break_copy(source: Path, out: Path, edit: Edit) -> Path:
    """Write a copy as one shard with one defect."""
    from safetensors.torch import load_file, save_file

    out.mkdir()
    tensors: Tensors = {}
    for path in source.iterdir():
        if path.suffix == ".safetensors":
            tensors |= load_file(path)
        elif path.is_file() and path.name != "model.safetensors.index.json":
            shutil.copy(path, out)
    config = json.loads((out / "config.json").read_text())
    edit(tensors, config)
    (out / "config.json").write_text(json.dumps(config))
    (out / "hf_quant_config.json").unlink(missing_ok=True)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, out / "model.safetensors")
    return out
