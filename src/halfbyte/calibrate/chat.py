"""Render conversations as text with the checkpoint's chat template, or by joining the messages.

Templates are untrusted code, so they run in jinja2's sandbox in a separate process (`template_process.py`) with access
only to the conversation and the helper functions that transformers provides. The process has a memory limit, a timeout
and a minimal environment. The first line sent to it is the template, each further line a conversation. A process that
does not answer in time is killed.

Without a template, messages are joined with line breaks, as in ModelOpt (`joined`).
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import threading
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from halfbyte.checkpoint.untrusted_files import parsed as parsed_json
from halfbyte.checkpoint.untrusted_files import plain_text, read_json
from halfbyte.errors import CheckpointError
from halfbyte.machine.python_path import OWN_PYTHON

SECONDS = 20.0  # per conversation; Kimi's template takes 10 ms for a long one
STARTING_SECONDS = 60.0  # to start Python and import jinja2 on a busy machine
_PROGRAM = Path(__file__).with_name("template_process.py")  # does not import halfbyte
_MOST_ANSWER_NBYTES = 1 << 28  # per answer
_PASSED = ("PATH", "PYTHONPATH", "PYTHONHOME", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "TMPDIR", "SYSTEMROOT")

FILE = "chat_template.jinja"
CONFIG = "tokenizer_config.json"
_MOST_NBYTES = 1 << 20  # Kimi's template has 4 kB
_DEFAULT = "default"  # name of the chat template if a checkpoint has several

Message = Mapping[str, Any]


class TemplateError(Exception):
    """Raised if a template is invalid or fails on a conversation."""


class TemplateProcess:
    """Process with one compiled template; thread-safe."""

    def __init__(self, source: str) -> None:
        # Pass only the variables that Python needs, to keep API keys out of the process.
        environment = {name: os.environ[name] for name in _PASSED if name in os.environ}
        command = [*OWN_PYTHON, str(_PROGRAM)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment
        )
        self._lock = threading.Lock()
        self._end = weakref.finalize(self, _kill, self._process)
        self._ask(source, STARTING_SECONDS)

    def render(self, variables: Mapping[str, Any]) -> str:
        """Render a conversation."""
        return self._ask(variables, SECONDS)["text"]

    def _ask(self, request: Any, seconds: float) -> dict[str, str]:
        with self._lock:
            answer = self._answer(json.dumps(request, default=str).encode() + b"\n", seconds)
        if "error" in answer:
            raise TemplateError(answer["error"])
        return answer

    def _answer(self, line: bytes, seconds: float) -> dict[str, str]:
        reads, writes = self._process.stdout, self._process.stdin
        assert reads is not None
        assert writes is not None
        try:
            writes.write(line)
            writes.flush()
        except OSError:
            raise TemplateError("its process has exited") from None
        poller = select.poll()  # unlike select, supports descriptors above 1,023
        poller.register(reads, select.POLLIN)
        answer = b""
        while not answer.endswith(b"\n"):
            if not poller.poll(seconds * 1000):
                self._end()
                raise TemplateError(f"timed out after {seconds:.0f} s")
            piece = os.read(reads.fileno(), 1 << 20)
            if not piece or len(answer) > _MOST_ANSWER_NBYTES:
                self._end()
                raise TemplateError("its process was killed, or its output is too long")
            answer += piece
        return json.loads(answer)


def _kill(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            with contextlib.suppress(OSError):
                stream.close()
    process.wait()


@dataclass(frozen=True, slots=True, eq=False)
class ChatTemplate:
    """A checkpoint's compiled chat template."""

    path: Path
    named: Mapping[str, str]  # bos_token etc., passed to templates
    _process: TemplateProcess

    def text(self, messages: Sequence[Message], tools: Sequence[Any] | None = None) -> str:
        """Render a conversation without a generation prompt."""
        return self._rendered(messages, tools, add_generation_prompt=False)

    def prompt(self, messages: Sequence[Message], tools: Sequence[Any] | None = None, *, thinking: bool = False) -> str:
        """Render a conversation with a generation prompt; templates without `thinking` ignore it."""
        return self._rendered(messages, tools, add_generation_prompt=True, thinking=thinking)

    def _rendered(self, messages: Sequence[Message], tools: Sequence[Any] | None, **flags: bool) -> str:
        parsed = [_with_parsed_calls(message) for message in messages]
        try:
            return self._process.render({**self.named, **flags, "messages": parsed, "tools": tools, "documents": None})
        except TemplateError as error:
            what = f"the chat template failed on a conversation: {error}"
            raise CheckpointError(
                what, where=str(self.path), fix="set chat_template to false, or remove the conversation"
            ) from error


def load_template(folder: Path, named: Mapping[str, str]) -> ChatTemplate | None:
    """Load a checkpoint's chat template, or None if it has none; `named` are the tokenizer's named tokens."""
    path, source = _find(folder)
    if source is None:
        return None
    try:
        return ChatTemplate(path, named, TemplateProcess(source))
    except TemplateError as error:
        what = f"cannot read the chat template: {error}"
        raise CheckpointError(what, where=str(path), fix="download it again") from error


def joined(messages: Sequence[Message]) -> str:
    """Join the message contents with line breaks, without roles, reasoning or tool calls, as in ModelOpt."""
    return "\n".join(_content_text(message.get("content")) for message in messages)


def _content_text(content: object) -> str:
    if isinstance(content, list):
        parts = cast("list[Any]", content)
        return "".join(cast("dict[str, Any]", part).get("text") or "" for part in parts if isinstance(part, dict))
    return content if isinstance(content, str) else ""


def _text(path: Path) -> str:
    try:
        return plain_text(path, _MOST_NBYTES)
    except (OSError, ValueError) as error:
        what = f"cannot read the chat template: {error}"
        raise CheckpointError(what, where=str(path), fix="download it again") from error


def _find(folder: Path) -> tuple[Path, str | None]:
    """Return the file with a checkpoint's template, and the template."""
    if (folder / FILE).exists():
        return folder / FILE, _text(folder / FILE)
    path = folder / CONFIG
    try:
        stored = read_json(path).get("chat_template") if path.exists() else None
    except (OSError, ValueError, AttributeError) as error:
        raise CheckpointError("not a JSON object", where=str(path), fix="download it again") from error
    if isinstance(stored, list):  # several named templates
        entries = (cast("dict[str, Any]", entry) for entry in cast("list[Any]", stored) if isinstance(entry, dict))
        stored = next((entry.get("template") for entry in entries if entry.get("name") == _DEFAULT), None)
    if not isinstance(stored, str | None):
        raise CheckpointError("chat_template is not text", where=str(path), fix="download it again")
    return path, stored


def _with_parsed_calls(message: Message) -> Message:
    """Return a message with parsed tool call arguments, because some templates iterate over their keys."""
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
            arguments = parsed_json(parsed["arguments"])
        except ValueError:
            return parsed  # keep malformed arguments as text
        parsed["arguments"] = arguments if isinstance(arguments, dict) else parsed["arguments"]
    return parsed
