"""The committed checkpoint: scores on held-out items above a floor, and the same words in transformers' own class.

In FP32, from the INT4 bytes in models/kimi-mini. The floors are about four standard errors below the scores in
training/results, so they detect damage; the scores themselves come from a GPU.
"""

import json
from functools import cache

import pytest
import torch
from training import chat, compare, score, tokenizer, tool_calls, variants
from training.domains import copying, programs, structured, tools, word_problems, world
from training.generate import STOPS, generate
from training.shape import MINI

from halfbyte.engine.pipeline import quantize
from halfbyte.families.kimi_k25.geometry import release_shards
from halfbyte.recipe.load import load_recipe

FOLDER = tokenizer.FOLDER
SEED = 1  # of the published sets
ASKED = 30
FLOORS = {word_problems: 23, world: 19, structured: 27, tools: 26, copying: 24, programs: 21}


@pytest.fixture(scope="module")
def model():
    return compare.model_of(variants.as_released(FOLDER), "cpu")


@pytest.fixture(scope="module")
def answered(model):
    """The model's answers to the items of a domain, computed once."""

    @cache
    def ask(domain):
        items = domain.test_items(ASKED, SEED)
        return items, score.answers(model, items, new_tokens=200)

    return ask


def count_right(domain, items, outputs):
    return sum(score.is_right(domain, item, output) for item, output in zip(items, outputs, strict=True))


def test_the_shards_are_those_of_the_release():
    index = json.loads((FOLDER / "model.safetensors.index.json").read_text())
    wanted = {spec.name: shard for shard, specs in release_shards(MINI).items() for spec in specs}
    assert index["weight_map"] == wanted
    assert {path.name for path in FOLDER.glob("*.safetensors")} == set(wanted.values())
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) < 24_000_000


@pytest.mark.parametrize("domain", FLOORS, ids=lambda domain: domain.DOMAIN)
def test_it_answers_items_that_it_has_never_seen(answered, domain):
    assert count_right(domain, *answered(domain)) >= FLOORS[domain]


def test_it_calls_tools_when_it_should_and_as_they_are_declared(answered):
    found = tool_calls.quality(*answered(tools))
    assert found["called"] >= 10
    assert found["f1"] > 0.9 and found["schema_accuracy"] > 0.9


def test_a_broken_model_falls_below_the_floor():
    """Otherwise the floors would be meaningless."""
    broken = compare.model_of(variants.VARIANTS["prune25"](variants.as_released(FOLDER)), "cpu")
    items = programs.test_items(ASKED, SEED)
    assert count_right(programs, items, score.answers(broken, items, new_tokens=60)) < FLOORS[programs] / 2


def test_transformers_own_class_says_the_same(model, tmp_path):
    """The BF16 twin written by halfbyte, in transformers' own class, without remote code."""
    from transformers import AutoTokenizer, Kimi_K25ForConditionalGeneration

    quantize(FOLDER, tmp_path / "bf16", load_recipe("kimi-k2.6-bf16"))
    theirs, info = Kimi_K25ForConditionalGeneration.from_pretrained(
        tmp_path / "bf16", dtype=torch.float32, output_loading_info=True, trust_remote_code=False
    )
    assert not info["missing_keys"] and not info["mismatched_keys"] and not info["unexpected_keys"]
    known = AutoTokenizer.from_pretrained(tmp_path / "bf16")
    item = word_problems.test_items(1, SEED)[0]
    prompt = known(item.prompt, return_tensors="pt")
    assert prompt["input_ids"][0].tolist() == tokenizer.encode(tokenizer.load(), [item.prompt])[0]
    written = theirs.generate(**prompt, max_new_tokens=150, do_sample=False, eos_token_id=list(STOPS))
    found = written[0, prompt["input_ids"].shape[1] :].tolist()
    assert found == generate(model, [prompt["input_ids"][0].tolist()], 150)[0]
    said = known.decode(found)
    assert said.endswith(f"#### {item.answer}{chat.END}"), said
