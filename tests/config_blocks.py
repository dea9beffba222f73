"""All quantization configs that halfbyte writes: recipes and formats on every kind of source, without duplicates.

`PYTHONPATH=tests python tests/config_blocks.py` writes them to tests/golden/config_blocks.json. The scripts
tests/golden/make_parsed_*.py run the parsers of Quark, compressed-tensors and ModelOpt on that file.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from pico import KINDS, write_pico

from halfbyte.engine.pipeline import plan
from halfbyte.errors import RecipeError
from halfbyte.formats.registry import FORMATS, written_formats
from halfbyte.plan.manifest import Plan
from halfbyte.plan.quantization_config import MODELOPT_FILE, modelopt_file, quantization_block
from halfbyte.recipe.load import load_recipe, recipe_names

FILE = Path(__file__).parent / "golden" / "config_blocks.json"
BLOCK = "quantization_config"
IGNORE = {"glob": ("lm_head", "*self_attn*"), "re:": ("re:.*lm_head", "re:.*self_attn.*")}


def written_blocks() -> dict[str, dict[str, Any]]:
    """Return the distinct configs of a checkpoint, each with the first recipe and source kind that give it."""
    found: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for kind in KINDS:
            source = write_pico(Path(folder, kind), kind)
            for name, planned in (*_recipes(source), *(_formats(source) if kind == "bf16" else ())):
                assert planned.recipe.quantize is not None
                configs = {BLOCK: quantization_block(planned.recipe.quantize, planned)}
                if (legacy := modelopt_file(planned)) is not None:
                    configs[MODELOPT_FILE] = legacy
                if configs not in found.values():
                    found[f"{name}, {kind}"] = configs
    return found


def _recipes(source: Path) -> Iterator[tuple[str, Plan]]:
    """Yield the plan of every shipped recipe that quantizes."""
    for name in recipe_names():
        recipe = load_recipe(name)
        if recipe.quantize is None:
            continue
        try:
            yield name, plan(source, recipe)
        except RecipeError:  # a kept role is quantized in the source
            kept = [role for role in ("attention", "dense_mlp", "shared_experts") if recipe.roles[role] == "keep"]
            yield name, plan(source, load_recipe(name, [f"roles.{role}=bf16" for role in kept]))


def _formats(source: Path) -> Iterator[tuple[str, Plan]]:
    """Yield a plan for each format with each of its activations and KV caches."""
    planned = plan(source, load_recipe("kimi-k2.6-nvfp4-wafer"))
    quantize = planned.recipe.quantize
    assert quantize is not None
    for format in written_formats():
        target = FORMATS[format].recipe
        assert target is not None
        config = replace(
            quantize.config,
            producer_version="0.47.0" if target.names_producer else None,
            ignore_patterns=IGNORE[target.patterns],
        )
        for activations in target.activations or (None,):
            for kv_cache in target.kv_cache or (None,):
                changed: Any = {"format": format, "activations": activations, "kv_cache": kv_cache, "config": config}
                recipe = replace(planned.recipe, quantize=replace(quantize, **changed))
                yield f"{format} {activations} {kv_cache}", replace(planned, recipe=recipe)


if __name__ == "__main__":
    FILE.write_text(json.dumps(written_blocks(), indent=1) + "\n")
