"""Requests that cannot be right are answered with 4xx: not with 200, not with 500, and the server goes on."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from halfbyte.validate.endpoint import PATHS
from halfbyte.validate.probe.client import Ask
from halfbyte.validate.probe.judging import judged
from halfbyte.validate.probe.kinds import Finding, Setting, Shown
from halfbyte.validate.probe.marks import whole
from halfbyte.validate.probe.server.prompts import questions, server_probe

_CLIENT_ERRORS = range(400, 500)
_SOME_S = 60.0
_ANY_MODEL = "a model that is not there"  # SGLang and llama.cpp have one model and answer to every name, by intention


def bodies(model: str, limit: int) -> dict[str, tuple[str, bytes]]:
    """Return wrong requests by what is wrong with them."""
    turns = [{"role": "user", "content": "Hello."}]
    chat: dict[str, Any] = {"model": model, "messages": turns, "max_tokens": 4}
    wrong: dict[str, Any] = {
        "no messages": {"model": model, "max_tokens": 4},
        "messages that are no list": chat | {"messages": "Hello."},
        "a temperature that is a word": chat | {"temperature": "hot"},
        "max_tokens below zero": chat | {"max_tokens": -1},
        _ANY_MODEL: chat | {"model": f"{model}-which-is-not-there"},
        "a prompt longer than the context": chat | {"messages": [{"role": "user", "content": "one two " * limit}]},
    }
    found = {what: (PATHS["chat"], json.dumps(body).encode()) for what, body in wrong.items()}
    return {"half a JSON object": (PATHS["chat"], b'{"model": "'), **found}


def _malformed(setting: Setting) -> Finding:
    client = setting.client
    wrong = bodies(client.model, setting.context)
    answers = [client.ask(Ask(path, body, timeout_s=_SOME_S)) for path, body in wrong.values()]
    after = client.chat(questions(setting).prompts[0], max_tokens=8, repetition=500, always=True)
    found: list[list[Shown]] = []
    for what, answer in zip(wrong, answers, strict=True):
        right = answer.status in _CLIENT_ERRORS or (what == _ANY_MODEL and not answer.error)
        said = answer.error if answer.error else "an answer as if nothing were wrong"
        found.append([] if right else [Shown(answer.text, f"{what}: {said}", 0, len(answer.text), answer.id)])
    # A refusal is what is wanted: here it is no error.
    refused = [replace(one, error=None) if one.status is not None or not one.error else one for one in answers]
    found.append([whole(after, "no answer to a right request afterwards")] if after.error else [])
    any_model = not answers[list(wrong).index(_ANY_MODEL)].error
    return judged(
        [*refused, replace(after, error=None)],
        found,
        what="answered rightly" + (", any name of a model is taken" if any_model else ""),
        cause="server-options",
        numbers={"any_model_name": any_model},
    )


MALFORMED = (
    server_probe(
        "malformed",
        "malformed requests",
        "a client's mistake must not end a server or pass as an answer",
        _malformed,
        8,
    ),
)
