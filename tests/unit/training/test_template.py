"""The chat template of engines, the training code and Kimi's own template agree."""

import random

import pytest
from training import chat, mixture, tokenizer
from training.sample import Item, Sample

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "w",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
CALL = {"id": "functions.get_weather:0", "type": "function", "function": {"name": "get_weather", "arguments": "{}"}}


@pytest.fixture(scope="module")
def template():
    """Render like an engine."""
    from transformers import AutoTokenizer

    known = AutoTokenizer.from_pretrained(tokenizer.FOLDER)

    def render(messages, tools=(), **options):
        options = {"add_generation_prompt": True, "tokenize": False, **options}
        return known.apply_chat_template([dict(message) for message in messages], tools=list(tools) or None, **options)

    return render


def user(text):
    return {"role": "user", "content": text}


def assistant(text, **more):
    return {"role": "assistant", "content": text, **more}


def test_a_prompt_ends_in_thinking_or_after_it(template):
    asked = "<|im_user|>user<|im_middle|>hi<|im_end|><|im_assistant|>assistant<|im_middle|>"
    assert template([user("hi")]) == asked + "<think>"
    assert template([user("hi")], thinking=False) == asked + "<think></think>"
    for thinking in (True, False):
        item = Item("x", "0", messages=(user("hi"),), thinking=thinking)
        assert chat.prompt(item) == template([user("hi")], thinking=thinking)


def test_functions_are_declared_as_kimi_declares_them(template):
    declared = (
        "<|im_system|>tool_declare<|im_middle|># Tools\n\n## functions\nnamespace functions {\n// w\n"
        "type get_weather = (_: {\n  city: string\n}) => any;\n}\n<|im_end|>"
    )
    assert template([user("hi")], [WEATHER]).startswith(declared + "<|im_user|>")


PROPERTIES = {
    "zone": {"type": "string", "enum": ["a", "ü"], "description": "Where."},
    "Total": {"type": "integer"},
    "tags": {"type": "array", "items": {"type": "string"}},
    "ready": {"type": "boolean"},
    "place": {"type": "object", "properties": {"x": {"type": "number"}, "b": {}}, "required": ["x"]},
    "free": {"type": "object"},
}


def test_every_type_of_argument_is_declared_alike_by_both(template):
    parameters = {"type": "object", "properties": PROPERTIES, "required": ["zone", "Total"]}
    tools = ({"type": "function", "function": {"name": "f", "parameters": parameters}},)
    found = template([user("hi")], tools)
    assert found == chat.prompt(Item("x", "0", messages=(user("hi"),), tools=tools, thinking=True))
    assert "  free?: any,\n  place?: { b?: any, x: number },\n" in found
    assert '  // Where.\n  zone: "a" | "ü"\n' in found


def test_thoughts_of_finished_answers_are_dropped_and_those_of_a_chain_of_calls_kept(template):
    history = (
        user("a"), assistant("b", reasoning_content="old"), user("c"),
        assistant("", reasoning_content="new", tool_calls=[CALL]),
        {"role": "tool", "tool_call_id": CALL["id"], "content": "rain"},
    )  # fmt: skip
    found = template(history, [WEATHER])
    assert "old" not in found and "<think></think>b<|im_end|>" in found
    assert (
        "<think>new</think><|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0"
        "<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|><|im_end|>"
        "<|im_system|>tool<|im_middle|>## Return of functions.get_weather:0\nrain<|im_end|>"
    ) in found
    assert found == chat.prompt(Item("x", "0", messages=history, tools=(WEATHER,), thinking=True))
    assert "<think>old</think>b" in template(history, [WEATHER], preserve_thinking=True)


def test_an_engine_may_give_arguments_parsed(template):
    asked = [user("a"), assistant("", tool_calls=[CALL | {"function": {"name": "f", "arguments": {"ö": [1, "x"]}}}])]
    assert '<|tool_call_argument_begin|>{"ö": [1, "x"]}<|tool_call_end|>' in template(asked)


def test_images_have_a_place(template):
    parts = [{"type": "image_url", "image_url": {"url": "x"}}, {"type": "text", "text": "What?"}]
    assert "<|media_begin|>image<|media_content|><|media_pad|><|media_end|>What?" in template([user(parts)])


@pytest.mark.parametrize("domain", mixture.modules())
def test_samples_and_items_are_rendered_alike(template, domain):
    module, rng = mixture.modules()[domain], random.Random(4)
    for item in module.test_items(30, seed=4):
        if item.messages:
            assert chat.prompt(item) == template(item.messages, item.tools, thinking=item.thinking)
    chats = [sample for sample in (module.train_sample(rng) for _ in range(60)) if sample.messages]
    for sample in chats:
        check_sample(template, sample)


def check_sample(template, sample: Sample):
    *before, answer = sample.messages
    read = template(before, sample.tools, thinking=sample.thinking)
    whole = "".join(piece.text for piece in chat.pieces(sample))
    assert whole.startswith(read)
    written = "".join(piece.text for piece in chat.pieces(sample) if piece.learn)
    thought = f"{answer.get('reasoning_content') or ''}</think>" if sample.thinking else ""
    assert whole.removeprefix(read).startswith(thought + (answer["content"] or ""))
    assert written.endswith(whole.removeprefix(read))  # and so the answer is learned, all of it
    if answer.get("tool_calls"):  # in the next turn the engine includes the model's answer
        assert template(sample.messages, sample.tools, add_generation_prompt=False) == whole
