"""kimi-mini with 24 of its 32 experts in a real vLLM: it loads, generates, and agrees with transformers.

The experts are chosen at random, differently in each layer, so that a wrong router row is visible. Both libraries read
the BF16 twin of the pruned INT4 checkpoint and compute in FP32.
"""

import pytest
import torch
from served_variants import prune_at_random

pytestmark = pytest.mark.live

KEEP, NEW_TOKENS = 24, 16
CLOSE = 0.05  # nats, as between the two libraries without pruning
PROMPT = "A box holds 12 red pens and 7 blue pens. How many pens are in 3 boxes?"


@pytest.fixture(scope="module")
def twin(tmp_path_factory):
    return prune_at_random(tmp_path_factory.mktemp("twin"), KEEP, seed=0)


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
