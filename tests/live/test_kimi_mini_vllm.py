"""kimi-mini through a real vLLM: chats with and without thinking, tool calls, tool results, completions.

The requests are held-out items in the form that clients send. The server has the BF16 twin written by `halfbyte
quantize`.
"""

import json
import random
from concurrent.futures import ThreadPoolExecutor

import pytest
from training import chat, score, tokenizer, variants
from training.domains import tools, word_problems
from training.sample import Item

pytestmark = pytest.mark.live

ASKED = 10
ENOUGH = 7  # of those asked: a model that is right in nine of ten cases falls below in 1 of 78


@pytest.fixture
def server(kimi_mini_server):
    return kimi_mini_server


def chat_request(item: Item) -> dict:
    """The request that a client sends for an item."""
    request = {"model": "kimi-mini", "messages": list(item.messages), "temperature": 0, "max_tokens": 300}
    if item.tools:
        request["tools"] = list(item.tools)
    return request if item.thinking else request | {"chat_template_kwargs": {"thinking": False}}


def ask(server, item: Item) -> dict:
    return server.ask("/v1/chat/completions", **chat_request(item))["choices"][0]


def ask_all(server, items: list[Item]) -> list[dict]:
    """Return the choices for all items, sent concurrently: the server takes eight at a time."""
    with ThreadPoolExecutor(len(items)) as threads:
        return list(threads.map(lambda item: ask(server, item), items))


def reasoning(message: dict) -> str:
    return message.get("reasoning") or message.get("reasoning_content") or ""  # vLLM has renamed it


def problems(thinking: bool) -> list[Item]:
    """Held-out word problems as chats."""
    found = word_problems.test_items(ASKED, seed=1)
    question = [({"role": "user", "content": item.fields["question"]},) for item in found]
    return [
        Item(item.domain, item.id, messages=messages, thinking=thinking, answer=item.answer, fields=item.fields)
        for item, messages in zip(found, question, strict=True)
    ]


def tool_items(form: str) -> list[Item]:
    return [item for item in tools.test_items(40 * ASKED, seed=1) if item.fields["form"] == form][:ASKED]


@pytest.mark.parametrize("thinking", [True, False])
def test_a_chat_is_answered_and_thinking_is_kept_apart(server, thinking):
    right = 0
    items = problems(thinking)
    for item, choice in zip(items, ask_all(server, items), strict=True):
        message = choice["message"]
        assert choice["finish_reason"] == "stop"
        assert "think>" not in message["content"]
        assert bool(reasoning(message)) == thinking
        right += message["content"].endswith(f"#### {item.answer}")
    assert right >= ENOUGH


@pytest.mark.parametrize("form", ["one call", "two calls"])
def test_the_right_function_is_called_with_the_right_arguments(server, form):
    right = 0
    items = tool_items(form)
    for item, choice in zip(items, ask_all(server, items), strict=True):
        if choice["finish_reason"] != "tool_calls":
            continue
        calls = choice["message"]["tool_calls"]
        first = sum(len(message.get("tool_calls") or ()) for message in item.messages)  # Kimi counts through a chat
        assert [call["id"] for call in calls] == [
            f"functions.{call['function']['name']}:{first + at}" for at, call in enumerate(calls)
        ]
        made = [(call["function"]["name"], json.loads(call["function"]["arguments"])) for call in calls]
        right += made == [(call["name"], call["arguments"]) for call in item.fields["calls"]]
    assert right >= ENOUGH


@pytest.mark.parametrize("form", ["report", "small talk", "no such tool"])
def test_where_no_call_is_wanted_there_is_none(server, form):
    items = tool_items(form)
    choices = list(zip(ask_all(server, items), items, strict=True))
    assert all(choice["finish_reason"] in ("stop", "tool_calls") for choice, _ in choices)
    assert sum(choice["message"]["content"] == item.answer for choice, item in choices) >= ENOUGH


def test_a_completion_in_the_form_of_gsm8k_ends_with_the_right_number(server):
    items = word_problems.test_items(ASKED, seed=1)
    options = {"model": "kimi-mini", "temperature": 0, "max_tokens": 300}
    texts = [server.ask("/v1/completions", prompt=item.prompt, **options)["choices"][0]["text"] for item in items]
    assert sum(text.endswith(f"#### {item.answer}") for text, item in zip(texts, items, strict=True)) >= ENOUGH


def test_vllm_says_what_the_training_model_says(server, kimi_mini):
    """Both decode greedily from the same weights; near ties may fall differently, so one in ten may differ."""
    from training.compare import model_of

    items = word_problems.test_items(ASKED, seed=2)
    expected = score.answers(model_of(variants.as_released(kimi_mini), "cpu"), items, new_tokens=300)
    options = {"model": "kimi-mini", "temperature": 0, "max_tokens": 300, "skip_special_tokens": False}
    said = [server.ask("/v1/completions", prompt=item.prompt, **options)["choices"][0]["text"] for item in items]
    same = sum(a.removesuffix(chat.END) == b.removesuffix(chat.END) for a, b in zip(said, expected, strict=True))
    assert same >= ASKED - 1


def test_vllm_sends_the_model_the_prompt_that_was_trained(server):
    items = tools.test_items(30, seed=3) + problems(True) + problems(False)
    for item in random.Random(0).sample(items, 20):
        request = chat_request(item) | {"add_generation_prompt": True}
        found = server.ask("/tokenize", **{k: v for k, v in request.items() if k not in ("temperature", "max_tokens")})
        assert found["tokens"] == tokenizer.encode(tokenizer.load(), [chat.prompt(item)])[0]
