"""A real vLLM loads the output of `--layers 2`, and its log-probabilities are close to transformers'.

The source is INT4 with random weights and MLA's real head sizes, which vLLM's kernels require. Both compute in FP32,
which makes the comparison sharper and avoids AMX, which some virtual machines announce but do not support.
"""

import json
import urllib.request
from dataclasses import replace

import pico
import pytest
import torch

from halfbyte.engine.pipeline import quantize
from halfbyte.recipe.load import load_recipe

pytestmark = pytest.mark.live

PROMPT = [7, 300, 12, 45, 99, 410, 3, 3, 250, 128, 64, 500]
NEW_TOKENS = 24
ON_CPU = [] if torch.cuda.is_available() else ["--attention-backend", "CPU_MLA"]
# Nats between the two libraries. Measured, not derived: 0.041 was seen over 35 tokens, the first of them equal to five
# digits. Both read the same file, so the weights are the same; where the rest comes from is not known.
CLOSE = 0.05


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    """The first two layers, dense and MoE, of an INT4 checkpoint of three, decoded to BF16."""
    folder = tmp_path_factory.mktemp("live")
    geometry = replace(
        pico.SMALL, dense_width=512, vocabulary=512, heads=4, q_rank=128, kv_rank=512, nope_width=128, rope_width=64,
        value_width=128,
    )  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pico, "SMALL", geometry)
        source = pico.write_pico(
            folder / "source", "int4-k2-thinking", layers=3, experts=8, hidden=256, expert_width=128
        )
    strengthen(source)
    config = json.loads((source / "config.json").read_text())
    ends = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2, "max_position_embeddings": 4096}
    config |= {"model_type": "deepseek_v3", "rope_scaling": None, **ends}  # as transformers and vLLM both know it
    (source / "config.json").write_text(json.dumps(config))
    (source / "generation_config.json").unlink()
    quantize(source, folder / "out", load_recipe("kimi-k2.6-bf16"), layers=2)
    return folder / "out"


def strengthen(folder):
    """Scale up MLPs and routers: with weights as small as pico's, a missing expert would not be noticeable."""
    from safetensors.torch import load_file, save_file

    for path in folder.glob("*.safetensors"):
        tensors = load_file(path)
        for name in tensors:
            if name.endswith("mlp.gate.weight"):
                tensors[name] *= 32
            elif ".mlp." in name and name.endswith(("proj.weight", "proj.weight_scale")):
                tensors[name] *= 4
        save_file(tensors, path)


def ask(server, **request):
    body = json.dumps(request).encode()
    call = urllib.request.Request(f"{server.url}/v1/completions", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(call, timeout=120) as answer:
        return json.load(answer)["choices"][0]


def expected(folder, tokens, without=""):
    """Return log-probabilities after each token, by transformers in FP32 from the same BF16 weights."""
    from transformers import AutoModelForCausalLM

    model, info = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, output_loading_info=True)
    assert not info["missing_keys"]
    with torch.no_grad():
        for name, weights in model.named_parameters():
            if without and without in name:
                weights.zero_()
        return model(torch.tensor([tokens])).logits[0].log_softmax(-1)


def test_vllm_loads_the_output_and_says_what_transformers_says(out, start_vllm):
    flags = [
        "--skip-tokenizer-init", "--dtype", "float32", "--max-model-len", "256", "--enforce-eager",
        "--max-num-seqs", "2", "--served-model-name", "pico", *ON_CPU,
    ]  # fmt: skip
    options = {"model": "pico", "temperature": 0, "ignore_eos": True, "return_token_ids": True, "detokenize": False}
    with start_vllm(out, *flags) as server:
        generated = ask(server, prompt=PROMPT, max_tokens=NEW_TOKENS, **options)["token_ids"]
        assert len(generated) == NEW_TOKENS
        tokens = [*PROMPT, *generated]
        answer = ask(server, prompt=tokens, max_tokens=1, prompt_logprobs=0, **options)["prompt_logprobs"]
    said = torch.tensor([answer[i][str(token)]["logprob"] for i, token in enumerate(tokens) if i])
    after = torch.tensor(tokens[1:])[:, None]
    whole, unrouted = (expected(out, tokens, without)[:-1] for without in ("", ".mlp.experts."))
    wanted, without = (found.gather(-1, after)[:, 0] for found in (whole, unrouted))
    apart, equal = (said - wanted).abs().max(), int((whole.argmax(-1)[-NEW_TOKENS:] == after[-NEW_TOKENS:, 0]).sum())
    print(f"at most {apart:.4f} nat apart, {(without - wanted).abs().max():.2f} without experts; {equal} equal tokens")
    assert apart < CLOSE
    assert (without - wanted).abs().max() > 5 * CLOSE  # so missing experts would be seen
    assert equal >= NEW_TOKENS * 2 // 3  # 19 of 24 were seen
