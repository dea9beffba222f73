"""Invalid requests must get a 4xx status, not 200 or 500, and must not stop the server."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from halfbyte.endpoint.client import PATHS
from halfbyte.probe.client import Ask
from halfbyte.probe.judging import judged
from halfbyte.probe.kinds import Finding, Setting, Shown
from halfbyte.probe.marks import whole
from halfbyte.probe.server.prompts import questions, server_probe

_CLIENT_ERRORS = range(400, 500)
_SOME_S = 60.0
_ANY_MODEL = "unknown model"  # SGLang and llama.cpp serve one model and accept any name by design


def bodies(model: str, limit: int) -> dict[str, tuple[str, bytes]]:
    """Return invalid requests by fault."""
    turns = [{"role": "user", "content": "Hello."}]
    chat: dict[str, Any] = {"model": model, "messages": turns, "max_tokens": 4}
    invalid: dict[str, Any] = {
        "no messages": {"model": model, "max_tokens": 4},
        "messages that are not a list": chat | {"messages": "Hello."},
        "non-numeric temperature": chat | {"temperature": "hot"},
        "negative max_tokens": chat | {"max_tokens": -1},
        _ANY_MODEL: chat | {"model": f"{model}-which-is-not-there"},
        "prompt longer than the context": chat | {"messages": [{"role": "user", "content": "one two " * limit}]},
    }
    chats = {what: (PATHS["chat"], json.dumps(body).encode()) for what, body in invalid.items()}
    return {"truncated JSON": (PATHS["chat"], b'{"model": "'), **chats}


def _malformed(setting: Setting) -> Finding:
    client = setting.client
    invalid = bodies(client.model, setting.context)
    answers = [client.ask(Ask(path, body, timeout_s=_SOME_S)) for path, body in invalid.values()]
    after = client.chat(questions(setting).prompts[0], max_tokens=8, repetition=500, always=True)
    faults: list[list[Shown]] = []
    for what, answer in zip(invalid, answers, strict=True):
        right = answer.status in _CLIENT_ERRORS or (what == _ANY_MODEL and not answer.error)
        outcome = answer.error if answer.error else "answered as if it were valid"
        faults.append([] if right else [Shown(answer.text, f"{what}: {outcome}", 0, len(answer.text), answer.id)])
    # Here a refusal is the right answer, not an error.
    refused = [replace(answer, error=None) if answer.status is not None else answer for answer in answers]
    faults.append([whole(after, "no answer to a valid request afterwards")] if after.error else [])
    any_model = not answers[list(invalid).index(_ANY_MODEL)].error
    return judged(
        [*refused, replace(after, error=None)],
        faults,
        what="handled correctly" + (", any model name is accepted" if any_model else ""),
        cause="server-options",
        numbers={"any_model_name": any_model},
    )


MALFORMED = (
    server_probe(
        "malformed",
        "malformed requests",
        "an invalid request must not stop the server or get an answer",
        _malformed,
        8,
    ),
)
