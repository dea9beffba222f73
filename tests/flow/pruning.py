"""Pruning helpers for tests: selections, plans, and a simple in-memory pruner."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from halfbyte.checkpoint.folder import open_checkpoint
from halfbyte.checkpoint.headers import read_header
from halfbyte.engine.pipeline import Result, quantize
from halfbyte.families.model import describe
from halfbyte.plan.prune_plan import LayerChoice, PrunePlan
from halfbyte.plan.pruned import router_shape
from halfbyte.prune.options import recipe_of_plan

EXPERT = re.compile(r"(.*\.layers\.(\d+)\.mlp\.experts\.)(\d+)(\..*)")
GATE = re.compile(r".*\.layers\.(\d+)\.mlp\.gate\.(?:weight|e_score_correction_bias)")
Tensors = dict[str, tuple[str, tuple[int, ...], bytes]]


def some(folder: Path, keep: int, seed: int = 0) -> dict[int, tuple[int, ...]]:
    """Return a selection that differs by layer and is never just the first experts."""
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
    """Return the plan of a selection."""
    checkpoint = open_checkpoint(folder)
    router = router_shape(describe(checkpoint), checkpoint.config)
    layers = {layer: LayerChoice(chosen) for layer, chosen in kept.items()}
    differ = len({len(chosen) for chosen in kept.values()}) > 1
    return PrunePlan(router=router, layers=layers, rule=None, non_uniform=differ)


def prune(source: Path, out: Path, kept: Mapping[int, tuple[int, ...]], **options: Any) -> Result:
    """Prune a checkpoint to a selection."""
    plan = plan_of(source, kept)
    return quantize(source, out, recipe_of_plan(plan, "layers"), prune_plan=plan, **options)


def tensors(folder: Path) -> Tensors:
    """Read a complete checkpoint: dtype, shape and bytes by name."""
    found: Tensors = {}
    for path in sorted(folder.glob("*.safetensors")):
        raw = path.read_bytes()
        found |= {name: (t.dtype, t.shape, raw[t.begin : t.end]) for name, t in read_header(path, path.name).items()}
    return found


def obviously_pruned(before: Tensors, kept: Mapping[int, tuple[int, ...]]) -> Tensors:
    """Prune tensors in memory: rename kept experts, cut rows, keep everything else."""
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
