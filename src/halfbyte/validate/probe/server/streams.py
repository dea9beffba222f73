"""Streams: the same answer as the whole one, in whole characters, many at once, and cancelled without harm."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from halfbyte.validate.bench.metrics_page import read_page
from halfbyte.validate.endpoint import EndpointError
from halfbyte.validate.probe.answers import Answer
from halfbyte.validate.probe.client import Client
from halfbyte.validate.probe.judging import each, judged, no_answers
from halfbyte.validate.probe.kinds import Finding, Setting, Shown, Verdict, skipped
from halfbyte.validate.probe.marks import first_difference, whole
from halfbyte.validate.probe.server.prompts import questions, server_probe

AT_ONCE = 8
_CANCELLED = 4
_AFTER_CHUNKS = 3
_CALM_S = 20.0  # until cancelled requests must have left the server
_LOOK_S = 0.5
_REPLACEMENT = "\ufffd"


def _unsound(answer: Answer) -> list[Shown]:
    """Return what is wrong with a stream as a stream."""
    if answer.bad_utf8:
        return [whole(answer, f"{answer.bad_utf8} events are no UTF-8")]
    at = answer.text.find(_REPLACEMENT)
    if at >= 0:
        return [Shown(answer.text, "U+FFFD: a character was cut between two chunks", at, at + 1, answer.id)]
    if not answer.ended:
        return [whole(answer, "the stream ends without [DONE]")]
    if answer.finish_reason is None:
        return [whole(answer, "the stream ends without finish_reason")]
    return []


def _against(plain: Answer, streamed: Answer) -> list[Shown]:
    wrong = _unsound(streamed)
    for a, b, what in (
        (plain.text, streamed.text, "content"), (plain.reasoning or "", streamed.reasoning or "", "reasoning")
    ):  # fmt: skip
        difference = first_difference(a, b, streamed.id)
        if difference:
            wrong.append(Shown(b, f"{what}: {difference.what}", difference.start, difference.end, streamed.id))
    if plain.finish_reason != streamed.finish_reason:
        wrong.append(
            whole(streamed, f"finish_reason {streamed.finish_reason}, {plain.finish_reason} when not streamed")
        )
    return wrong


def _pairs(setting: Setting, prompts: Sequence[str], at_once: int) -> tuple[list[Answer], list[list[Shown]]]:
    client, tokens = setting.client, questions(setting).max_tokens
    plain = [client.chat(prompt, max_tokens=tokens, repetition=200) for prompt in prompts]
    asks = [client.chat_ask(prompt, max_tokens=tokens, stream=True, repetition=200) for prompt in prompts]
    streamed = client.ask_all(asks, at_once)
    wrongs = each(
        streamed,
        lambda number, answer: (
            [whole(plain[number], "no plain answer to compare with")]
            if plain[number].error
            else _against(plain[number], answer)
        ),
    )
    return streamed, wrongs


def _equals_plain(setting: Setting) -> Finding:
    answers, wrongs = _pairs(setting, questions(setting).prompts, 1)
    return judged(answers, wrongs, what="streamed as plain", cause="streaming")


def _whole_characters(setting: Setting) -> Finding:
    answers, wrongs = _pairs(setting, [questions(setting).unicode_prompt], 1)
    some = sum(not one.isascii() for answer in answers for one in answer.text)
    if some == 0 and not any(answer.error for answer in answers):
        wrongs[0].append(whole(answers[0], "no character of several bytes came"))
    return judged(answers, wrongs, what=f"whole, with {some} characters of several bytes", cause="broken-characters")


def _concurrent(setting: Setting) -> Finding:
    """Many streams at once: each must be whole, and the answer to its own prompt."""
    prompts = questions(setting).prompts
    many = [number % len(prompts) for number in range(AT_ONCE)]
    client, tokens = setting.client, questions(setting).max_tokens
    plain = [client.chat(prompt, max_tokens=tokens, repetition=200).text for prompt in prompts]
    asks = [
        client.chat_ask(prompts[one], max_tokens=tokens, stream=True, repetition=300 + number)
        for number, one in enumerate(many)
    ]
    answers = client.ask_all(asks, AT_ONCE)
    wrongs = each(answers, lambda number, answer: _unsound(answer) or _of_another(answer, plain, many[number]))
    return judged(answers, wrongs, what="streams whole", cause="streaming")


def _of_another(answer: Answer, plain: Sequence[str], own: int) -> list[Shown]:
    """Return a stream that begins like the plain answer to another prompt, and not like that to its own.

    In a batch an answer may part from the plain one somewhere; it does not become another prompt's.
    """
    alike = [
        next((at for at, (a, b) in enumerate(zip(answer.text, text, strict=False)) if a != b), len(text))
        for text in plain
    ]
    other = max(range(len(plain)), key=alike.__getitem__)
    if plain[other] == plain[own] or alike[other] <= max(2 * alike[own], len(answer.text) // 2):
        return []
    return [whole(answer, "this is the answer to another prompt")]


def running(client: Client) -> float | None:
    """Return how many requests a server works on, if it tells."""
    try:
        page = client.endpoint.get("/metrics", 10)
    except EndpointError:
        return None
    return read_page(page).running if isinstance(page, str) else None


def _hang_up() -> Any:
    """Return what hangs up after some chunks that carry something."""
    seen = 0

    def watch(chunk: Mapping[str, Any]) -> str | None:
        nonlocal seen
        seen += "content" in chunk or "reasoning" in chunk
        return "cancelled by the probe" if seen >= _AFTER_CHUNKS else None

    return watch


def _cancellation(setting: Setting) -> Finding:
    """Hang up in the middle of some streams: the server must drop them, and answer the next request."""
    client, asked = setting.client, questions(setting)
    options = {"max_tokens": setting.context // 2, "stream": True, **asked.endless_options}
    asks = [
        client.chat_ask(asked.endless, repetition=400 + number, watch=_hang_up(), always=True, **options)
        for number in range(_CANCELLED)
    ]
    before = running(client) or 0.0  # of others: an endpoint that is in use goes on with theirs
    cancelled = client.ask_all(asks, _CANCELLED)
    nothing = no_answers(cancelled)
    if nothing:
        return nothing
    if not any(one.cut_by for one in cancelled):
        return skipped("no stream could be hung up before its end: the server sends them when they are through")
    calm = before + _CANCELLED - 1 if before else 0.0
    end, left = time.monotonic() + _CALM_S, running(client)
    while left is not None and left > calm and time.monotonic() < end:
        time.sleep(_LOOK_S)
        left = running(client)
    after = client.chat(asked.prompts[0], max_tokens=asked.max_tokens, repetition=401, always=True)
    told = "the server does not tell what it runs" if left is None else f"{left:.0f} requests still running"
    shown = [whole(after, "no answer after the cancelled ones")] if after.error else []
    if left is not None and left > calm:
        shown.append(Shown("", f"{told} {_CALM_S:.0f} s after they were cancelled"))
    return Finding(
        Verdict.FAILED if shown else Verdict.PASSED,
        f"{sum(one.cut_by is not None for one in cancelled)} of {_CANCELLED} cancelled, {told}",
        "none running, next answered",
        {"running_before": before, "running_after": left, "cancelled": _CANCELLED},
        tuple(shown),
        "server-options" if shown else None,
    )


STREAMS = (
    server_probe(
        "stream-equals-plain", "streamed equals plain", "parsers and proxies work differently on streams",
        _equals_plain, 8,
    ),
    server_probe(
        "utf8-chunks", "UTF-8 whole in chunks", "a character of four bytes can be cut between two chunks",
        _whole_characters, 2,
    ),
    server_probe(
        "concurrent-streams", "concurrent streams", "streams can be cut or mixed up under load", _concurrent, 12
    ),
    server_probe(
        "cancellation", "cancellation", "agents hang up often; a server that writes on runs full", _cancellation, 5
    ),
)  # fmt: skip
