"""Conversations as text: through the checkpoint's own chat template, or by joining what was said.

A template is a program from the checkpoint, so it runs in jinja2's sandbox: it sees the conversation and the helpers
that transformers gives to templates, and can change and reach nothing else. Without a template, ModelOpt joins the
turns' contents with line breaks; `joined` does the same.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, cast

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from halfbyte.errors import CheckpointError
from halfbyte.foreign import parsed as parsed_json
from halfbyte.foreign import plain_text, read_json

FILE = "chat_template.jinja"
CONFIG = "tokenizer_config.json"
_MOST_NBYTES = 1 << 20  # Kimi's template has 4 kB
_DEFAULT = "default"  # the name of the template for chat, where a checkpoint has several
_TODAY = datetime(2026, 1, 1)  # templates that print the date would give other tokens, and other scales, every day

Message = Mapping[str, Any]


@dataclass(frozen=True, slots=True, eq=False)
class ChatTemplate:
    """A checkpoint's chat template, ready to be used."""

    path: Path
    named: Mapping[str, str]  # bos_token and the like, which templates write by name
    _compiled: jinja2.Template

    def text(self, messages: Sequence[Message], tools: Sequence[Any] | None = None) -> str:
        """Return a conversation as the model would see it, without an opening for another answer."""
        return self._rendered(messages, tools, add_generation_prompt=False)

    def prompt(self, messages: Sequence[Message], tools: Sequence[Any] | None = None, *, thinking: bool = False) -> str:
        """Return a conversation that waits for an answer; templates that know no `thinking` do as they always do."""
        return self._rendered(messages, tools, add_generation_prompt=True, thinking=thinking)

    def _rendered(self, messages: Sequence[Message], tools: Sequence[Any] | None, **asked: bool) -> str:
        seen = [_with_parsed_calls(message) for message in messages]
        try:
            return self._compiled.render(messages=seen, tools=tools, documents=None, **asked, **self.named)
        except Exception as error:  # a template is a foreign program: whatever it raises, it could not do this
            what = f"the chat template refuses a conversation: {error}"
            raise CheckpointError(
                what, where=str(self.path), fix="set chat_template to false, or leave it out"
            ) from error


def load_template(folder: Path, named: Mapping[str, str]) -> ChatTemplate | None:
    """Return a checkpoint's template, None where it has none; `named` are its vocabulary's named tokens."""
    path, source = _find(folder)
    if source is None:
        return None
    try:
        return ChatTemplate(path, named, _sandbox().from_string(source))
    except jinja2.TemplateError as error:
        what = f"the chat template cannot be read: {error}"
        raise CheckpointError(what, where=str(path), fix="download it again") from error


def joined(messages: Sequence[Message]) -> str:
    """Return what was said, a turn on a line, as ModelOpt does it without a template: no roles, thoughts or calls."""
    return "\n".join(_said(message.get("content")) for message in messages)


def _said(content: object) -> str:
    if isinstance(content, list):
        parts = cast("list[Any]", content)
        return "".join(cast("dict[str, Any]", part).get("text") or "" for part in parts if isinstance(part, dict))
    return content if isinstance(content, str) else ""


def _text(path: Path) -> str:
    try:
        return plain_text(path, _MOST_NBYTES)
    except (OSError, ValueError) as error:
        what = f"the chat template cannot be read: {error}"
        raise CheckpointError(what, where=str(path), fix="download it again") from error


def _find(folder: Path) -> tuple[Path, str | None]:
    """Return where a checkpoint's template stands, and its text."""
    if (folder / FILE).exists():
        return folder / FILE, _text(folder / FILE)
    path = folder / CONFIG
    try:
        stored = read_json(path).get("chat_template") if path.exists() else None
    except (OSError, ValueError, AttributeError) as error:
        raise CheckpointError("it is not a JSON object", where=str(path), fix="download it again") from error
    if isinstance(stored, list):  # several templates with names
        templates = {entry["name"]: entry["template"] for entry in cast("list[dict[str, str]]", stored)}
        stored = templates.get(_DEFAULT)
    return path, stored


def _with_parsed_calls(message: Message) -> Message:
    """Return a message whose tool calls have their arguments as objects; some templates go through their keys."""
    calls = message.get("tool_calls")
    if not isinstance(calls, list):
        return message
    return {**message, "tool_calls": [_with_parsed_arguments(call) for call in cast("list[Any]", calls)]}


def _with_parsed_arguments(call: Any) -> Any:
    if not isinstance(call, dict):
        return call
    parsed = dict(cast("dict[str, Any]", call))
    if isinstance(parsed.get("function"), dict):
        parsed["function"] = _with_parsed_arguments(parsed["function"])
    if isinstance(parsed.get("arguments"), str):
        try:
            found = parsed_json(parsed["arguments"])
        except ValueError:
            return parsed  # a call that a model got wrong is text like any other
        parsed["arguments"] = found if isinstance(found, dict) else parsed["arguments"]
    return parsed


class _Generation(Extension):
    """Templates may mark what the model writes with {% generation %}; to a reader of the text it means nothing."""

    tags = {"generation"}  # noqa: RUF012 - jinja2's own declaration

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _sandbox() -> ImmutableSandboxedEnvironment:
    """Return the surroundings that transformers gives to templates; they were written for these."""
    sandbox = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    sandbox.filters["tojson"] = _to_json
    helpers = cast("dict[str, Any]", sandbox.globals)
    helpers["raise_exception"] = _raise
    helpers["strftime_now"] = _date
    return sandbox


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Return JSON as it is; jinja2's own filter escapes for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise(message: str) -> None:
    raise jinja2.TemplateError(message)


def _date(pattern: str) -> str:
    return _TODAY.strftime(pattern)
