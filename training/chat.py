"""What the model reads: a sample as pieces of text and special tokens, each learned or not.

models/kimi-mini/chat_template.jinja says the same to an engine, and a test holds the two together. This one is here
because it must also say which pieces are learned, and because it is fifty times faster.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from training.sample import Item, Message, Sample

END = "<|im_end|>"  # ends a turn and a document alike: every engine stops there


class Piece(NamedTuple):
    """A special token, or text between two of them."""

    text: str
    is_token: bool = False
    learn: bool = False
    learn_from: int = 0  # of a learned text: the first character that counts


def pieces(sample: Sample) -> list[Piece]:
    """Return a sample as it is learned: the assistant's turns of a chat, a document from a character on or in spans."""
    if sample.spans:
        return [*_stretches(sample.text, sample.spans), Piece(END, is_token=True, learn=True)]
    if not sample.messages:
        return [Piece(sample.text, learn=True, learn_from=sample.learn_from), Piece(END, is_token=True, learn=True)]
    *before, answer = sample.messages
    found = list(_turns(before, sample.tools, learn=True))
    found += _opening("<|im_assistant|>", "assistant")
    found += [Piece("<think>", is_token=True)]
    thought = answer.get("reasoning_content") or ""
    if sample.thinking:
        found += [Piece(thought, learn=True), Piece("</think>", is_token=True, learn=True)]
    else:
        found += [Piece("</think>", is_token=True)]
    found += _answer(answer, learn=True)
    return [piece for piece in found if piece.text]


def _stretches(text: str, spans: Sequence[tuple[int, int]]) -> Iterator[Piece]:
    """Yield a document in pieces that are learned or not; a stretch begins where a token does."""
    at = 0
    for begin, end in spans:
        yield from (Piece(text[at:begin]), Piece(text[begin:end], learn=True))
        at = end
    if text[at:]:
        yield Piece(text[at:])


def prompt(item: Item) -> str:
    """Return what an engine sends to the model for a test item."""
    if not item.messages:
        return item.prompt
    found = [*_turns(item.messages, item.tools, learn=False), *_opening("<|im_assistant|>", "assistant")]
    return "".join(piece.text for piece in found) + ("<think>" if item.thinking else "<think></think>")


def _turns(messages: Sequence[Message], tools: Sequence[Mapping[str, Any]], *, learn: bool) -> Iterator[Piece]:
    """Yield the turns before the one that is being answered."""
    answers = [at for at, message in enumerate(messages) if message["role"] == "assistant" and not _calls(message)]
    last_answer = max(answers, default=-1)
    if tools:
        yield from _opening("<|im_system|>", "tool_declare")
        yield Piece(declarations(json.dumps(tools)))
        yield Piece(END, is_token=True)
    for at, message in enumerate(messages):
        role, name = message["role"], message.get("name") or message["role"]
        if role == "assistant":
            yield from _opening("<|im_assistant|>", name)
            yield Piece("<think>", is_token=True)
            thought = (message.get("reasoning_content") or "") if at > last_answer else ""
            yield Piece(thought, learn=learn)
            yield Piece("</think>", is_token=True, learn=learn and bool(thought))
            yield from _answer(message, learn=learn)
            continue
        yield from _opening("<|im_user|>" if role == "user" else "<|im_system|>", name)
        head = f"## Return of {message['tool_call_id']}\n" if role == "tool" else ""
        yield Piece(head + (message["content"] or ""))
        yield Piece(END, is_token=True)


def _opening(token: str, name: str) -> list[Piece]:
    return [Piece(token, is_token=True), Piece(name), Piece("<|im_middle|>", is_token=True)]


def _answer(message: Message, *, learn: bool) -> Iterator[Piece]:
    yield Piece(message.get("content") or "", learn=learn)
    calls = _calls(message)
    if calls:
        yield Piece("<|tool_calls_section_begin|>", is_token=True, learn=learn)
    for call in calls:
        yield Piece("<|tool_call_begin|>", is_token=True, learn=learn)
        yield Piece(call["id"], learn=learn)
        yield Piece("<|tool_call_argument_begin|>", is_token=True, learn=learn)
        yield Piece(_arguments(call["function"]["arguments"]), learn=learn)
        yield Piece("<|tool_call_end|>", is_token=True, learn=learn)
    if calls:
        yield Piece("<|tool_calls_section_end|>", is_token=True, learn=learn)
    yield Piece(END, is_token=True, learn=learn)


def _calls(message: Message) -> Sequence[Mapping[str, Any]]:
    return message.get("tool_calls") or ()


def _arguments(given: Any) -> str:
    """Return arguments as an engine renders them in a later turn, which parses them before."""
    return json.dumps(json.loads(given) if isinstance(given, str) else given, ensure_ascii=False)


@lru_cache(maxsize=4096)
def declarations(tools: str) -> str:
    """Return functions as Kimi declares them: in TypeScript, properties by name."""
    lines = ["# Tools", "", "## functions", "namespace functions {"]
    for tool in json.loads(tools):
        function = tool.get("function") or tool
        schema = function.get("parameters") or {}
        if function.get("description"):
            lines.append(f"// {function['description']}")
        lines.append(f"type {function['name']} = (_: {{")
        fields = _in_template_order(schema.get("properties") or {})
        for at, (name, part) in enumerate(fields, 1):
            if part.get("description"):
                lines.append(f"  // {part['description']}")
            comma = "," if at < len(fields) else ""
            lines.append(f"  {_field(name, part, schema)}{comma}")
        lines.append("}) => any;")
    return "\n".join([*lines, "}", ""])


def _in_template_order(properties: Mapping[str, Any]) -> list[tuple[str, Any]]:
    return sorted(properties.items(), key=lambda pair: pair[0].lower())  # jinja's dictsort ignores case


def _field(name: str, part: Mapping[str, Any], schema: Mapping[str, Any]) -> str:
    return f"{name}{'' if name in (schema.get('required') or ()) else '?'}: {_type(part)}"


def _type(schema: Mapping[str, Any]) -> str:
    if schema.get("enum"):
        return " | ".join(json.dumps(value, ensure_ascii=False) for value in schema["enum"])
    kind = schema.get("type")
    if kind in ("string", "boolean"):
        return str(kind)
    if kind in ("integer", "number"):
        return "number"
    if kind == "array":
        return f"Array<{_type(schema.get('items') or {})}>"
    if kind == "object" and schema.get("properties"):
        fields = _in_template_order(schema["properties"])
        return "{ " + ", ".join(_field(name, part, schema) for name, part in fields) + " }"
    return "any"
