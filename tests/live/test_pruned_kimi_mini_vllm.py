"""kimi-mini with 24 of its 32 experts in a real vLLM: it loads, generates, and says what transformers says.

Which experts stay is drawn at random, differently in each layer, so that the answers are poor and a wrong row shows:
both libraries read the BF16 twin of the pruned INT4 checkpoint and compute in FP32.
"""

import random

import pytest
import torch
from served_variants import KIMI_MINI

from halfbyte.models.model import describe
from halfbyte.pipeline import quantize
from halfbyte.plan.pruned import router_shape
from halfbyte.prune.asked import recipe_of_plan
from halfbyte.prune.plan_file import LayerChoice, PrunePlan
from halfbyte.recipe import load_recipe
from halfbyte.source.checkpoint import open_checkpoint

pytestmark = pytest.mark.live

KEEP, NEW_TOKENS = 24, 16
CLOSE = 0.05  # nats, as between the two libraries without pruning
PROMPT = "A box holds 12 red pens and 7 blue pens. How many pens are in 3 boxes?"


@pytest.fixture(scope="module")
def twin(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pruned")
    checkpoint, dice = open_checkpoint(KIMI_MINI), random.Random(0)
    model = describe(checkpoint)
    layers = {at: LayerChoice(tuple(sorted(dice.sample(range(model.experts), KEEP)))) for at in model.moe_layers}
    plan = PrunePlan(router=router_shape(model, checkpoint.config), layers=layers, rule=None)
    quantize(KIMI_MINI, folder / "pruned", recipe_of_plan(plan, "layers"), prune_plan=plan)
    quantize(folder / "pruned", folder / "bf16", load_recipe("kimi-k2.6-bf16"))
    return folder / "bf16"


def test_vllm_loads_it_and_says_what_transformers_says(twin, start_vllm, cpu_options):
    from transformers import AutoTokenizer, Kimi_K25ForConditionalGeneration

    options = ["--served-model-name", "pruned", "--max-model-len", "512", "--max-num-seqs", "2", "--enforce-eager"]
    prompt = AutoTokenizer.from_pretrained(twin)(PROMPT)["input_ids"]
    asked = {"model": "pruned", "temperature": 0, "ignore_eos": True, "return_token_ids": True}
    with start_vllm(twin, *options, *cpu_options) as server:
        made = server.ask("/v1/completions", prompt=prompt, max_tokens=NEW_TOKENS, **asked)["choices"][0]["token_ids"]
        assert len(made) == NEW_TOKENS
        tokens = [*prompt, *made]
        answer = server.ask("/v1/completions", prompt=tokens, max_tokens=1, prompt_logprobs=0, **asked)["choices"][0]
    found = answer["prompt_logprobs"]
    said = torch.tensor([found[at][str(token)]["logprob"] for at, token in enumerate(tokens) if at])
    model = Kimi_K25ForConditionalGeneration.from_pretrained(twin, dtype=torch.float32, trust_remote_code=False)
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([tokens])).logits[0].log_softmax(-1)[:-1]
    wanted = logits.gather(-1, torch.tensor(tokens[1:])[:, None])[:, 0]
    print(f"at most {(said - wanted).abs().max():.5f} nat apart over {len(said)} tokens")
    assert (said - wanted).abs().max() < CLOSE
