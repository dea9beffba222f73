"""Outputs of the recipes, built once, and copies of them to damage."""

import json
import shutil

import pytest
from damage import RECIPES
from pico import write_pico

from halfbyte.engine.pipeline import quantize
from halfbyte.formats.reference import nvfp4
from halfbyte.recipe.load import load_recipe

GLOBS = ["*self_attn*", "*shared_experts*", "*.layers.0.*", "*lm_head*", "vision_tower*", "mm_projector*"]


@pytest.fixture(scope="session")
def outputs(tmp_path_factory):
    """A source, and the output of each recipe."""
    root = tmp_path_factory.mktemp("audit")
    source = write_pico(root / "source")
    for name in RECIPES:
        quantize(source, root / name, load_recipe(f"kimi-k2.6-{name}"))
    modelopt = ["quantize.format=nvfp4", "quantize.scales=mse", "quantize.kv_cache=none"]
    modelopt += ['quantize.config.producer_version="0.47.0"', f"quantize.config.ignore_patterns={json.dumps(GLOBS)}"]
    quantize(source, root / "modelopt", load_recipe("kimi-k2.6-nvfp4a16", modelopt))
    return root


@pytest.fixture(autouse=True)
def few_blocks(monkeypatch):
    monkeypatch.setattr(nvfp4, "SWEPT_BLOCKS", 4)  # the exact sweep takes 5 ms a block


@pytest.fixture
def copy(outputs, tmp_path):
    """A copy of an output, to damage."""

    def make(name):
        return shutil.copytree(outputs / name, tmp_path / name)

    return make
