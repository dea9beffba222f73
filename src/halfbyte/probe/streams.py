"""Streams: equal to plain answers, valid UTF-8, complete when concurrent, and canceled without harm."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from halfbyte.endpoint.client import EndpointError
from halfbyte.endpoint.metrics_page import read_page
from halfbyte.probe.answers import Answer
from halfbyte.probe.client import Client
from halfbyte.probe.judging import each, first_difference, judged, no_answers, whole
from halfbyte.probe.probe import (
    Excerpt,
    Finding,
    Setting,
    Verdict,
    skipped,
)
from halfbyte.probe.server import questions, server_probe

AT_ONCE = 8
_CANCELLED = 4
_AFTER_CHUNKS = 3
_CALM_S = 20.0  # until canceled requests must have left the server
_LOOK_S = 0.5
_REPLACEMENT = "\ufffd"


def _stream_faults(answer: Answer) -> list[Excerpt]:
    """Return the faults of a stream as such."""
    if answer.bad_utf8:
        return [whole(answer, f"{answer.bad_utf8} events are not valid UTF-8")]
    at = answer.text.find(_REPLACEMENT)
    if at >= 0:
        return [Excerpt(answer.text, "U+FFFD: a character was split between two chunks", at, at + 1, answer.id)]
    if not answer.ended:
        return [whole(answer, "the stream ends without [DONE]")]
    if answer.finish_reason is None:
        return [whole(answer, "the stream ends without finish_reason")]
    return []


def _differences(plain: Answer, streamed: Answer) -> list[Excerpt]:
    faults = _stream_faults(streamed)
    for a, b, what in (
        (plain.text, streamed.text, "content"), (plain.reasoning or "", streamed.reasoning or "", "reasoning")
    ):  # fmt: skip
        difference = first_difference(a, b, streamed.id)
        if difference:
            faults.append(Excerpt(b, f"{what}: {difference.problem}", difference.start, difference.end, streamed.id))
    if plain.finish_reason != streamed.finish_reason:
        faults.append(
            whole(streamed, f"finish_reason {streamed.finish_reason}, {plain.finish_reason} when not streamed")
        )
    return faults


def _pairs(setting: Setting, prompts: Sequence[str], at_once: int) -> tuple[list[Answer], list[list[Excerpt]]]:
    client, tokens = setting.client, questions(setting).max_tokens
    plain = [client.chat(prompt, max_tokens=tokens, repetition=200) for prompt in prompts]
    asks = [client.chat_ask(prompt, max_tokens=tokens, stream=True, repetition=200) for prompt in prompts]
    streamed = client.ask_all(asks, at_once)
    wrongs = each(
        streamed,
        lambda number, answer: (
            [whole(plain[number], "no plain answer to compare with")]
            if plain[number].error
            else _differences(plain[number], answer)
        ),
    )
    return streamed, wrongs


def _equals_plain(setting: Setting) -> Finding:
    answers, wrongs = _pairs(setting, questions(setting).prompts, 1)
    return judged(answers, wrongs, what="equal to the plain answer", cause="streaming")


def _whole_characters(setting: Setting) -> Finding:
    answers, wrongs = _pairs(setting, [questions(setting).unicode_prompt], 1)
    multibyte = sum(not character.isascii() for answer in answers for character in answer.text)
    if multibyte == 0 and not any(answer.error for answer in answers):
        wrongs[0].append(whole(answers[0], "no multi-byte character in the answer"))
    return judged(answers, wrongs, what=f"intact, with {multibyte} multi-byte characters", cause="broken-characters")


def _concurrent(setting: Setting) -> Finding:
    """Send many streams at once: each must be complete and the answer to its own prompt."""
    prompts = questions(setting).prompts
    many = [number % len(prompts) for number in range(AT_ONCE)]
    client, tokens = setting.client, questions(setting).max_tokens
    plain = [client.chat(prompt, max_tokens=tokens, repetition=200).text for prompt in prompts]
    asks = [
        client.chat_ask(prompts[index], max_tokens=tokens, stream=True, repetition=300 + number)
        for number, index in enumerate(many)
    ]
    answers = client.ask_all(asks, AT_ONCE)
    wrongs = each(answers, lambda number, answer: _stream_faults(answer) or _mixed_up(answer, plain, many[number]))
    return judged(answers, wrongs, what="streams complete", cause="streaming")


def _mixed_up(answer: Answer, plain: Sequence[str], own: int) -> list[Excerpt]:
    """Return a fault if a stream starts like the plain answer to another prompt instead of its own.

    In a batch, an answer may diverge from its plain version, but it does not become the answer to another prompt.
    """
    equal = [
        next((at for at, (a, b) in enumerate(zip(answer.text, text, strict=False)) if a != b), len(text))
        for text in plain
    ]
    other = max(range(len(plain)), key=equal.__getitem__)
    if plain[other] == plain[own] or equal[other] <= max(2 * equal[own], len(answer.text) // 2):
        return []
    return [whole(answer, "the answer to another prompt")]


def running(client: Client) -> float | None:
    """Return the number of running requests of a server, or None if it is not reported."""
    try:
        page = client.endpoint.get("/metrics", 10)
    except EndpointError:
        return None
    return read_page(page).running if isinstance(page, str) else None


def _cancel_after_chunks() -> Any:
    """Return a watch that cancels a stream after a few chunks with content."""
    seen = 0

    def watch(chunk: Mapping[str, Any]) -> str | None:
        nonlocal seen
        seen += "content" in chunk or "reasoning" in chunk
        return "canceled by the probe" if seen >= _AFTER_CHUNKS else None

    return watch


def _cancellation(setting: Setting) -> Finding:
    """Cancel some streams: the server must drop them and answer the next request."""
    client, section = setting.client, questions(setting)
    options = {"max_tokens": setting.context // 2, "stream": True, **section.endless_options}
    asks = [
        client.chat_ask(section.endless, repetition=400 + number, watch=_cancel_after_chunks(), always=True, **options)
        for number in range(_CANCELLED)
    ]
    before = running(client) or 0.0  # requests of other clients, which keep running
    cancelled = client.ask_all(asks, _CANCELLED)
    unusable = no_answers(cancelled)
    if unusable:
        return unusable
    if not any(answer.cut_by for answer in cancelled):
        return skipped("no stream could be canceled before its end: the server sends it only when it is complete")
    calm = before + _CANCELLED - 1 if before else 0.0
    end, left = time.monotonic() + _CALM_S, running(client)
    while left is not None and left > calm and time.monotonic() < end:
        time.sleep(_LOOK_S)
        left = running(client)
    after = client.chat(section.prompts[0], max_tokens=section.max_tokens, repetition=401, always=True)
    remaining = "the server does not report running requests" if left is None else f"{left:.0f} requests still running"
    shown = [whole(after, "no answer after the canceled requests")] if after.error else []
    if left is not None and left > calm:
        shown.append(Excerpt("", f"{remaining} {_CALM_S:.0f} s after they were canceled"))
    return Finding(
        Verdict.FAILED if shown else Verdict.PASSED,
        f"{sum(answer.cut_by is not None for answer in cancelled)} of {_CANCELLED} canceled, {remaining}",
        "none running, next request answered",
        {"running_before": before, "running_after": left, "cancelled": _CANCELLED},
        tuple(shown),
        "server-options" if shown else None,
    )


STREAMS = (
    server_probe(
        "stream-equals-plain", "streamed equals plain", "parsers and proxies handle streams differently",
        _equals_plain, 8,
    ),
    server_probe(
        "utf8-chunks", "intact UTF-8 in chunks", "a four-byte character can be split between two chunks",
        _whole_characters, 2,
    ),
    server_probe(
        "concurrent-streams", "concurrent streams", "streams can be truncated or mixed up under load", _concurrent, 12
    ),
    server_probe(
        "cancellation", "cancellation", "agents cancel often, and a server that keeps generating fills up",
        _cancellation, 5,
    ),
)  # fmt: skip
