"""Conversations as text: through a sandboxed template, exactly as in transformers, or by joining turns."""

import json
from pathlib import Path

import pytest

from halfbyte.calibrate.chat import joined, load_template
from halfbyte.calibrate.tokenizer import load_vocabulary
from halfbyte.errors import CheckpointError

REPOSITORY = Path(__file__).parents[3]
MINI = REPOSITORY / "models" / "kimi-mini"
HELLO = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi <b>"}]


def template_of(folder: Path, source: str):
    (folder / "chat_template.jinja").write_text(source)
    return load_template(folder, {"bos_token": "<s>"})


def test_kimi_minis_template_equals_transformers_on_every_conversation():
    from transformers import AutoTokenizer

    theirs = AutoTokenizer.from_pretrained(MINI)
    vocabulary = load_vocabulary(MINI)
    ours = load_template(MINI, vocabulary.named)
    samples = [json.loads(line) for line in (REPOSITORY / "data/calibration/instructions.jsonl").open()]
    assert sum("tools" in sample for sample in samples) > 20
    for sample in samples:
        messages, tools = sample["messages"], sample.get("tools")
        text = ours.text(messages, tools)
        assert text == theirs.apply_chat_template(messages, tools=tools, tokenize=False)
        assert vocabulary.encode(text, special=True) == theirs(text)["input_ids"]


def test_a_template_may_use_the_helpers_of_transformers(tmp_path):
    source = (
        "{{ bos_token }}{% for m in messages %}{% if m.role == 'tool' %}{% continue %}{% endif %}"
        "{% generation %}{{ m.content | tojson }}{% endgeneration %}"
        "{% if loop.index == 2 %}{% break %}{% endif %}{% endfor %}"
        "{{ messages[0] | tojson(indent=1) }}{{ add_generation_prompt }}{{ tools is none }}"
    )
    messages = [{"role": "tool", "content": "x"}, {"role": "user", "content": "<ü>"}, {"role": "user", "content": "no"}]
    text = template_of(tmp_path, source).text(messages)
    assert text == '<s>"<ü>"{\n "role": "tool",\n "content": "x"\n}FalseTrue'


def test_template_blocks_leave_no_empty_lines(tmp_path):
    source = "a\n  {% if true %}\nb\n  {% endif %}\nc\n"
    assert template_of(tmp_path, source).text(HELLO) == "a\nb\nc"


def test_a_template_that_prints_the_date_prints_the_same_every_day(tmp_path):
    assert template_of(tmp_path, "{{ strftime_now('%Y-%m-%d') }}").text(HELLO) == "2026-01-01"


def test_arguments_of_tool_calls_are_objects(tmp_path):
    source = "{% for c in messages[0].tool_calls %}{% for k in c.function.arguments %}{{ k }};{% endfor %}{% endfor %}"
    arguments = ['{"a": 1, "b": 2}', {"c": 3}, "{d", "[1]"]
    calls = [{"function": {"name": "f", "arguments": argument}} for argument in arguments]
    message = {"role": "assistant", "content": "", "tool_calls": calls}
    assert template_of(tmp_path, source).text([message]) == "a;b;c;{;d;[;1;];"
    assert message["tool_calls"][0]["function"]["arguments"] == arguments[0]  # the caller's own stay as they are


@pytest.mark.parametrize(
    "source",
    [
        "{{ raise_exception('roles must alternate') }}",
        "{{ messages[0].nothing.at.all }}",
        "{{ messages.append(1) }}",
        "{{ ''.__class__.__mro__ }}{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ strftime_now.__globals__['json'] }}",
        "{{ 1 / 0 }}",
    ],
)
def test_forbidden_operations_of_a_template_are_errors(tmp_path, source):
    with pytest.raises(CheckpointError, match="the chat template failed on a conversation") as caught:
        template_of(tmp_path, source).text(HELLO)
    assert caught.value.where.endswith("chat_template.jinja")
    assert "chat_template to false" in caught.value.fix


def test_an_invalid_template_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match="cannot read the chat template"):
        template_of(tmp_path, "{% if %}")


def test_the_template_file_takes_precedence_over_the_config(tmp_path):
    assert load_template(tmp_path, {}) is None
    config = tmp_path / "tokenizer_config.json"
    config.write_text("{}")
    assert load_template(tmp_path, {}) is None
    config.write_text(json.dumps({"chat_template": "config"}))
    assert load_template(tmp_path, {}).text(HELLO) == "config"
    several = [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "chat"}]
    config.write_text(json.dumps({"chat_template": several}))
    assert load_template(tmp_path, {}).text(HELLO) == "chat"
    assert template_of(tmp_path, "file").text(HELLO) == "file"
    (tmp_path / "chat_template.jinja").unlink()
    config.write_text("[]")
    with pytest.raises(CheckpointError, match="not a JSON object"):
        load_template(tmp_path, {})


def test_without_a_template_turns_are_joined_as_in_modelopt():
    assert joined(HELLO) == "Hello\nHi <b>"
    parts = [{"type": "image"}, {"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert (
        joined([{"role": "user", "content": parts}, {"role": "assistant", "content": None}, {"role": "x"}]) == "ab\n\n"
    )


def test_a_prompt_ends_with_the_generation_prompt():
    folder = Path(__file__).parents[3] / "models" / "kimi-mini"
    template = load_template(folder, load_vocabulary(folder).named)
    assert template is not None
    asked = [{"role": "user", "content": "Why?"}]
    opening = "<|im_user|>user<|im_middle|>Why?<|im_end|>"
    assert template.text(asked) == opening
    assert template.prompt(asked) == opening + "<|im_assistant|>assistant<|im_middle|><think></think>"
    assert template.prompt(asked, thinking=True) == opening + "<|im_assistant|>assistant<|im_middle|><think>"
