"""kimi-mini in every format behind a real vLLM with the plugin: started, queried with the OpenAI client, and stopped.

Most of a server's startup is two imports and process creation; the options below disable compilation, image profiling
and long contexts.
"""

import json
import shutil

import pytest
from emulated_server import EmulatedServer
from served_variants import change_tensors, make_variant
from training.domains import tools

pytestmark = pytest.mark.live

FORMATS = [
    "int4",
    "fp8-channel",
    "nvfp4-modelopt",
    "nvfp4-compressed-tensors",
    "mxfp4-quark",
    "mxfp4-compressed-tensors",
    "nvfp4-pruned",
]
OPTIONS = [
    "--quantization", "halfbyte_emulate", "--served-model-name", "mini", "--max-model-len", "1024",
    "--max-num-seqs", "2", "--max-num-batched-tokens", "1024", "--enforce-eager", "--disable-log-stats",
    "--enable-auto-tool-choice", "--tool-call-parser", "kimi_k2", "--reasoning-parser", "kimi_k2",
    "--limit-mm-per-prompt", '{"image": 0, "video": 0, "vision_chunk": 0}',
]  # fmt: skip
EXPERT = "language_model.model.layers.1.mlp.experts.7.up_proj"
QUESTION = [{"role": "user", "content": "A box holds 12 red pens and 7 blue pens. How many pens are in 3 boxes?"}]


@pytest.fixture(scope="module")
def variants(tmp_path_factory):
    return tmp_path_factory.mktemp("variants")


@pytest.mark.parametrize("name", FORMATS)
def test_it_starts_answers_calls_tools_and_ends(name, variants, vllm_bin, cpu_options, tmp_path):
    import openai

    folder = make_variant(name, variants)
    server = EmulatedServer(vllm_bin, folder, tmp_path / "vllm.log", [*OPTIONS, *cpu_options])
    print(f"{name}: healthy after {server.seconds:.0f} s")
    try:
        client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", timeout=120)
        plain = {"model": "mini", "temperature": 0, "max_tokens": 120}
        no_thinking = {"extra_body": {"chat_template_kwargs": {"thinking": False}}}
        check_chat_and_stream(client, plain, no_thinking)
        check_tool_call(client, plain)
        check_log_probabilities(client)
    finally:
        left = server.stop()
    assert left == []


def check_chat_and_stream(client, plain, no_thinking):
    answer = client.chat.completions.create(messages=QUESTION, **plain, **no_thinking).choices[0]
    assert answer.finish_reason in ("stop", "length")
    assert answer.message.content
    assert "<|" not in answer.message.content
    chunks = list(client.chat.completions.create(messages=QUESTION, stream=True, **plain, **no_thinking))
    said = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert said == answer.message.content
    assert len(chunks) > 3


def check_tool_call(client, plain):
    """Check that at least one of a few held-out requests gets the right call; a damaged copy may miss some."""
    items = [item for item in tools.test_items(200, seed=1) if item.fields["form"] == "one call"][:4]
    right = 0
    for item in items:
        extra = {} if item.thinking else {"extra_body": {"chat_template_kwargs": {"thinking": False}}}
        request = {"messages": list(item.messages), "tools": list(item.tools), **plain, **extra, "max_tokens": 200}
        choice = client.chat.completions.create(**request).choices[0]
        for call in choice.message.tool_calls or []:
            wanted = item.fields["calls"][0]
            assert call.id.startswith("functions.")
            right += call.function.name == wanted["name"] and json.loads(call.function.arguments) == wanted["arguments"]
    assert right >= 1


def check_log_probabilities(client):
    request = {"model": "mini", "temperature": 0, "max_tokens": 4, "logprobs": 5}
    found = client.completions.create(prompt="One box holds 12 pens, so two boxes hold", **request).choices[0].logprobs
    assert len(found.token_logprobs) == len(found.tokens) >= 1
    assert all(-30 < one <= 0 for one in found.token_logprobs)
    assert all(len(top) >= 5 for top in found.top_logprobs)


def test_a_broken_checkpoint_does_not_start_and_the_log_ends_with_the_reason(variants, vllm_bin, cpu_options, tmp_path):
    """An expert without its input scale, which vLLM alone would serve."""
    folder = tmp_path / "broken"
    shutil.copytree(make_variant("nvfp4-two-layers", variants), folder)
    change_tensors(folder, lambda tensors: tensors.pop(f"{EXPERT}.input_scale"))
    with pytest.raises(AssertionError, match="vLLM ended with 1") as caught:
        EmulatedServer(vllm_bin, folder, tmp_path / "vllm.log", [*OPTIONS, *cpu_options])
    last = str(caught.value).strip().splitlines()[-1]
    assert "halfbyte.errors.CheckpointError: it has no input_scale" in last
    assert EXPERT in last
