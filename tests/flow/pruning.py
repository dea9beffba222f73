"""Pruning for tests: choices, plans of them, and the obvious way to prune a checkpoint, in memory."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from halfbyte.models.model import describe
from halfbyte.pipeline import Result, quantize
from halfbyte.plan.pruned import router_shape
from halfbyte.prune.asked import recipe_of_plan
from halfbyte.prune.plan_file import LayerChoice, PrunePlan
from halfbyte.source.checkpoint import open_checkpoint
from halfbyte.source.headers import read_header

EXPERT = re.compile(r"(.*\.layers\.(\d+)\.mlp\.experts\.)(\d+)(\..*)")
GATE = re.compile(r".*\.layers\.(\d+)\.mlp\.gate\.(?:weight|e_score_correction_bias)")
Tensors = dict[str, tuple[str, tuple[int, ...], bytes]]


def some(folder: Path, keep: int, seed: int = 0) -> dict[int, tuple[int, ...]]:
    """Return a choice that differs from layer to layer, and is in none the first experts."""
    model, dice = describe(open_checkpoint(folder)), random.Random(seed)
    kept: dict[int, tuple[int, ...]] = {}
    for layer in model.moe_layers:
        while (chosen := tuple(sorted(dice.sample(range(model.experts), keep)))) in (
            tuple(range(keep)),
            *kept.values(),
        ):
            pass
        kept[layer] = chosen
    return kept


def plan_of(folder: Path, kept: Mapping[int, tuple[int, ...]]) -> PrunePlan:
    """Return the plan of a choice."""
    checkpoint = open_checkpoint(folder)
    router = router_shape(describe(checkpoint), checkpoint.config)
    layers = {layer: LayerChoice(chosen) for layer, chosen in kept.items()}
    differ = len({len(chosen) for chosen in kept.values()}) > 1
    return PrunePlan(router=router, layers=layers, rule=None, non_uniform=differ)


def prune(source: Path, out: Path, kept: Mapping[int, tuple[int, ...]], **options: Any) -> Result:
    """Prune a checkpoint to a choice."""
    plan = plan_of(source, kept)
    return quantize(source, out, recipe_of_plan(plan, "layers"), prune_plan=plan, **options)


def tensors(folder: Path) -> Tensors:
    """Read a whole checkpoint: dtype, shape and bytes by name."""
    found: Tensors = {}
    for path in sorted(folder.glob("*.safetensors")):
        raw = path.read_bytes()
        found |= {name: (t.dtype, t.shape, raw[t.begin : t.end]) for name, t in read_header(path, path.name).items()}
    return found


def obviously_pruned(before: Tensors, kept: Mapping[int, tuple[int, ...]]) -> Tensors:
    """Prune tensors in memory: rename experts that stay, cut rows, leave everything else."""
    after: Tensors = {}
    for name, (dtype, shape, data) in before.items():
        expert, gate = EXPERT.fullmatch(name), GATE.fullmatch(name)
        if expert:
            head, layer, number, tail = expert.groups()
            if int(number) in kept[int(layer)]:
                after[f"{head}{kept[int(layer)].index(int(number))}{tail}"] = (dtype, shape, data)
        elif gate:
            row = len(data) // shape[0]
            chosen = kept[int(gate.group(1))]
            rows = b"".join(data[expert * row : (expert + 1) * row] for expert in chosen)
            after[name] = (dtype, (len(chosen), *shape[1:]), rows)
        else:
            after[name] = (dtype, shape, data)
    return after


def config(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "config.json").read_text())
