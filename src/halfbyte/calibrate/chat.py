"""Conversations as text: through the checkpoint's own chat template, or by joining what was said.

A template is a program from the checkpoint, so it runs in jinja2's sandbox, in a process of its own (`template.py`): it
sees the conversation and the helpers that transformers gives to templates, and can change and reach nothing else.
Without a template, ModelOpt joins the turns' contents with line breaks; `joined` does the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from halfbyte.calibrate.template import TemplateError, TemplateProcess
from halfbyte.errors import CheckpointError
from halfbyte.source.foreign import parsed as parsed_json
from halfbyte.source.foreign import plain_text, read_json

FILE = "chat_template.jinja"
CONFIG = "tokenizer_config.json"
_MOST_NBYTES = 1 << 20  # Kimi's template has 4 kB
_DEFAULT = "default"  # the name of the template for chat, where a checkpoint has several

Message = Mapping[str, Any]


@dataclass(frozen=True, slots=True, eq=False)
class ChatTemplate:
    """A checkpoint's chat template, ready to be used."""

    path: Path
    named: Mapping[str, str]  # bos_token and the like, which templates write by name
    _process: TemplateProcess

    def text(self, messages: Sequence[Message], tools: Sequence[Any] | None = None) -> str:
        """Return a conversation as the model would see it, without an opening for another answer."""
        return self._rendered(messages, tools, add_generation_prompt=False)

    def prompt(self, messages: Sequence[Message], tools: Sequence[Any] | None = None, *, thinking: bool = False) -> str:
        """Return a conversation that waits for an answer; templates that know no `thinking` do as they always do."""
        return self._rendered(messages, tools, add_generation_prompt=True, thinking=thinking)

    def _rendered(self, messages: Sequence[Message], tools: Sequence[Any] | None, **asked: bool) -> str:
        seen = [_with_parsed_calls(message) for message in messages]
        try:
            return self._process.render({**self.named, **asked, "messages": seen, "tools": tools, "documents": None})
        except TemplateError as error:
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
        return ChatTemplate(path, named, TemplateProcess(source))
    except TemplateError as error:
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
        entries = (cast("dict[str, Any]", entry) for entry in cast("list[Any]", stored) if isinstance(entry, dict))
        stored = next((entry.get("template") for entry in entries if entry.get("name") == _DEFAULT), None)
    if not isinstance(stored, str | None):
        raise CheckpointError("chat_template is no text", where=str(path), fix="download it again")
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
