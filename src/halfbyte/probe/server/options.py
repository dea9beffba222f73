"""Request options take effect: stop strings, max_tokens, log-probabilities, usage."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from halfbyte.probe.answers import Answer
from halfbyte.probe.judging import each, judged
from halfbyte.probe.kinds import Finding, Setting, Shown, skipped
from halfbyte.probe.marks import whole
from halfbyte.probe.server.prompts import questions, server_probe

_LENGTHS = (1, 5, 17)
_TOP = 5
_SMALLEST, _LARGEST = -100.0, 1e-6  # natural logarithms of probabilities
_STOP_CHARACTERS = 3


def _stop_strings(setting: Setting) -> Finding:
    """Ask again with a part of each answer as stop string: the new answer must end just before it."""
    client, section = setting.client, questions(setting)
    free = client.ask_all([client.chat_ask(prompt, max_tokens=section.max_tokens) for prompt in section.prompts])
    pairs = [(prompt, answer.text) for prompt, answer in zip(section.prompts, free, strict=True) if _stop(answer.text)]
    if not pairs:
        return judged(
            free, each(free, lambda _, answer: [whole(answer, "too short for a stop string")]), cause="server-options"
        )
    asks = [client.chat_ask(prompt, max_tokens=section.max_tokens, stop=[_stop(text)]) for prompt, text in pairs]
    answers = client.ask_all(asks)

    def wrong(number: int, answer: Answer) -> Sequence[Shown]:
        text = pairs[number][1]
        stop = _stop(text)
        at = answer.text.find(stop)
        if at >= 0:
            return [Shown(answer.text, f"contains the stop string {stop!r}", at, at + len(stop), answer.id)]
        if answer.finish_reason != "stop":
            return [whole(answer, f"finish_reason is {answer.finish_reason}, not stop")]
        before = text[: text.find(stop)]
        if text.startswith(answer.text) and answer.text.strip() != before.strip():
            return [whole(answer, f"did not stop just before {stop!r}, which follows {before[-20:]!r}")]
        return []  # as expected, or another text that stopped somewhere else

    return judged(answers, each(answers, wrong), what="stopped", cause="server-options")


def _stop(text: str) -> str:
    """Return a few characters from the middle of a text as stop string; empty if the text is too short."""
    middle = len(text) // 2
    stop = text[middle : middle + _STOP_CHARACTERS]
    return stop if stop.strip() and len(stop) == _STOP_CHARACTERS and text.find(stop) > 0 else ""


def _max_tokens(setting: Setting) -> Finding:
    client, prompt = setting.client, questions(setting).endless
    answers = client.ask_all([client.chat_ask(prompt, max_tokens=tokens) for tokens in _LENGTHS])

    def wrong(number: int, answer: Answer) -> Sequence[Shown]:
        tokens = _LENGTHS[number]
        if not answer.usage and answer.finish_reason != "length":  # no usage: an endless text must have been cut
            return [whole(answer, f"not cut at {tokens} tokens: finish_reason is {answer.finish_reason}")]
        if answer.completion_tokens > tokens:
            return [whole(answer, f"{answer.completion_tokens} tokens, but {tokens} were allowed")]
        if answer.completion_tokens == tokens and answer.finish_reason != "length":
            return [whole(answer, f"cut at {tokens} tokens, but finish_reason is {answer.finish_reason}")]
        return []

    return judged(answers, each(answers, wrong), what="kept the limit", cause="server-options")


def _logprobs(setting: Setting) -> Finding:
    client, section = setting.client, questions(setting)
    options: dict[str, Any] = {"max_tokens": section.max_tokens, "logprobs": True, "top_logprobs": _TOP}
    answers = client.ask_all([client.chat_ask(prompt, **options) for prompt in section.prompts])
    if not any(answer.error or answer.token_logprobs for answer in answers):
        return skipped("the server reports no log-probabilities although they were requested")
    return judged(
        answers, each(answers, lambda _, answer: _inconsistent(answer)), what="consistent", cause="server-options"
    )


def _inconsistent(answer: Answer) -> list[Shown]:
    tokens = answer.token_logprobs
    if not tokens:
        return [whole(answer, "no log-probabilities")]
    if answer.completion_tokens and not answer.completion_tokens - 1 <= len(tokens) <= answer.completion_tokens:
        return [whole(answer, f"{len(tokens)} log-probabilities for {answer.completion_tokens} tokens")]
    for place, token in enumerate(tokens):
        try:
            value = float(token["logprob"])
            top = [float(candidate["logprob"]) for candidate in token.get("top_logprobs") or ()]
        except (LookupError, TypeError, ValueError):
            return [whole(answer, f"the log-probability of token {place + 1} is not a number: {str(token)[:80]}")]
        if not math.isfinite(value) or not _SMALLEST < value <= _LARGEST:
            return [whole(answer, f"token {place + 1} has the invalid log-probability {value}")]
        if top and value < max(top) - _LARGEST:
            return [whole(answer, f"greedy token {place + 1} is not top-1")]
        if top and sum(map(math.exp, top)) > 1 + 1e-3:
            return [whole(answer, f"the probabilities at token {place + 1} sum to more than 1")]
    return []


def _usage(setting: Setting) -> Finding:
    """Compare the token counts of plain answers, streams and /tokenize."""
    client, section = setting.client, questions(setting)
    plain = client.ask_all([client.chat_ask(text, max_tokens=16) for text in section.prompts])
    streamed = client.ask_all([client.chat_ask(text, max_tokens=16, stream=True) for text in section.prompts])
    counted = [setting.lengths.count([{"role": "user", "content": text}]) for text in section.prompts]

    def wrong(number: int, answer: Answer) -> Sequence[Shown]:
        if not answer.usage:
            return [whole(answer, "no usage")]
        prompt, total = answer.prompt_tokens or 0, answer.usage.get("total_tokens")
        if total is not None and total != prompt + answer.completion_tokens:
            return [whole(answer, f"{prompt} and {answer.completion_tokens} tokens do not add up to {total}")]
        other = streamed[number]
        if not other.error and other.usage and other.prompt_tokens != prompt:
            return [whole(other, f"{other.prompt_tokens} prompt tokens, {prompt} when not streamed")]
        if not other.error and not other.usage:
            return [whole(other, "no usage at the end of the stream")]
        if counted[number] is not None and counted[number] != prompt:
            return [whole(answer, f"usage reports {prompt} prompt tokens, /tokenize {counted[number]}")]
        return []

    return judged(plain, each(plain, wrong), what="counted consistently", cause="server-options")


OPTIONS = (
    server_probe(
        "stop-strings", "stop strings", "agents end turns with stop strings; a server may ignore them",
        _stop_strings, 8,
    ),
    server_probe("max-tokens", "max_tokens", "an ignored limit costs money and time", _max_tokens, 3),
    server_probe("logprobs", "logprobs", "NaN logits show here before they show in texts", _logprobs, 4),
    server_probe("usage", "usage counts", "a wrong prompt count indicates a wrong template or tokenizer", _usage, 8),
)  # fmt: skip
