"""What a request asks for is what comes: stop strings, max_tokens, log-probabilities, counts of tokens."""

from __future__ import annotations

import math
from collections.abc import Sequence

from halfbyte.validate.probe.answers import Answer
from halfbyte.validate.probe.judging import each, judged
from halfbyte.validate.probe.kinds import Finding, Setting, Shown, skipped
from halfbyte.validate.probe.marks import whole
from halfbyte.validate.probe.server.prompts import questions, server_probe

_LENGTHS = (1, 5, 17)
_TOP = 5
_SMALLEST, _LARGEST = -100.0, 1e-6  # natural logarithms of probabilities
_STOP_CHARACTERS = 3


def _stop_strings(setting: Setting) -> Finding:
    """Take what the model wrote, and ask again to stop at a part of it: the answer must end just before."""
    client, asked = setting.client, questions(setting)
    free = client.ask_all([client.chat_ask(prompt, max_tokens=asked.max_tokens) for prompt in asked.prompts])
    pairs = [(prompt, answer.text) for prompt, answer in zip(asked.prompts, free, strict=True) if _stop(answer.text)]
    if not pairs:
        return judged(
            free, each(free, lambda _, answer: [whole(answer, "too short to stop in")]), cause="server-options"
        )
    asks = [client.chat_ask(prompt, max_tokens=asked.max_tokens, stop=[_stop(text)]) for prompt, text in pairs]
    answers = client.ask_all(asks)

    def wrong(number: int, answer: Answer) -> Sequence[Shown]:
        text = pairs[number][1]
        stop = _stop(text)
        at = answer.text.find(stop)
        if at >= 0:
            return [Shown(answer.text, f"the stop string {stop!r} is in it", at, at + len(stop), answer.id)]
        if answer.finish_reason != "stop":
            return [whole(answer, f"finish_reason is {answer.finish_reason}, not stop")]
        before = text[: text.find(stop)]
        if text.startswith(answer.text) and answer.text.strip() != before.strip():
            return [whole(answer, f"it did not stop just before {stop!r}, which follows {before[-20:]!r}")]
        return []  # as it should, or it went another way, and stopped there

    return judged(answers, each(answers, wrong), what="stopped", cause="server-options")


def _stop(text: str) -> str:
    """Return some characters from the middle of a text that stand nowhere before; empty if it is too short."""
    middle = len(text) // 2
    stop = text[middle : middle + _STOP_CHARACTERS]
    return stop if stop.strip() and len(stop) == _STOP_CHARACTERS and text.find(stop) > 0 else ""


def _max_tokens(setting: Setting) -> Finding:
    client, prompt = setting.client, questions(setting).endless
    answers = client.ask_all([client.chat_ask(prompt, max_tokens=tokens) for tokens in _LENGTHS])

    def wrong(number: int, answer: Answer) -> Sequence[Shown]:
        tokens = _LENGTHS[number]
        if not answer.usage and answer.finish_reason != "length":  # nobody counts: an endless text must have been cut
            return [whole(answer, f"not cut at {tokens} tokens: finish_reason is {answer.finish_reason}")]
        if answer.completion_tokens > tokens:
            return [whole(answer, f"{answer.completion_tokens} tokens where {tokens} were allowed")]
        if answer.completion_tokens == tokens and answer.finish_reason != "length":
            return [whole(answer, f"cut at {tokens} tokens, and finish_reason is {answer.finish_reason}")]
        return []

    return judged(answers, each(answers, wrong), what="kept the limit", cause="server-options")


def _logprobs(setting: Setting) -> Finding:
    client, asked = setting.client, questions(setting)
    answers = client.ask_all(
        [client.chat_ask(one, max_tokens=asked.max_tokens, logprobs=True, top_logprobs=_TOP) for one in asked.prompts]
    )
    if not any(answer.error or answer.token_logprobs for answer in answers):
        return skipped("the server tells no log-probabilities, though it was asked for them")
    return judged(
        answers, each(answers, lambda _, answer: _inconsistent(answer)), what="consistent", cause="server-options"
    )


def _inconsistent(answer: Answer) -> list[Shown]:
    told = answer.token_logprobs
    if not told:
        return [whole(answer, "no log-probabilities")]
    if answer.completion_tokens and not answer.completion_tokens - 1 <= len(told) <= answer.completion_tokens:
        return [whole(answer, f"{len(told)} log-probabilities for {answer.completion_tokens} tokens")]
    for place, token in enumerate(told):
        try:
            value = float(token["logprob"])
            top = [float(one["logprob"]) for one in token.get("top_logprobs") or ()]
        except (LookupError, TypeError, ValueError):
            return [whole(answer, f"token {place + 1} has no number as its log-probability: {str(token)[:80]}")]
        if not math.isfinite(value) or not _SMALLEST < value <= _LARGEST:
            return [whole(answer, f"token {place + 1} has the log-probability {value}")]
        if top and value < max(top) - _LARGEST:
            return [whole(answer, f"token {place + 1}, greedy, is not the likeliest")]
        if top and sum(math.exp(one) for one in top) > 1 + 1e-3:
            return [whole(answer, f"the probabilities at token {place + 1} are more than 1 together")]
    return []


def _usage(setting: Setting) -> Finding:
    """The same request has the same count, plain and streamed, and as /tokenize counts it."""
    client, asked = setting.client, questions(setting)
    plain = client.ask_all([client.chat_ask(one, max_tokens=16) for one in asked.prompts])
    streamed = client.ask_all([client.chat_ask(one, max_tokens=16, stream=True) for one in asked.prompts])
    counted = [setting.lengths.count([{"role": "user", "content": one}]) for one in asked.prompts]

    def wrong(number: int, answer: Answer) -> Sequence[Shown]:
        if not answer.usage:
            return [whole(answer, "no usage")]
        prompt, total = answer.prompt_tokens or 0, answer.usage.get("total_tokens")
        if total is not None and total != prompt + answer.completion_tokens:
            return [whole(answer, f"{prompt} and {answer.completion_tokens} tokens are not {total}")]
        other = streamed[number]
        if not other.error and other.usage and other.prompt_tokens != prompt:
            return [whole(other, f"{other.prompt_tokens} tokens of the prompt, {prompt} when not streamed")]
        if not other.error and not other.usage:
            return [whole(other, "no usage at the end of the stream")]
        if counted[number] is not None and counted[number] != prompt:
            return [whole(answer, f"usage says {prompt} tokens of the prompt, /tokenize {counted[number]}")]
        return []

    return judged(plain, each(plain, wrong), what="counted alike", cause="server-options")


OPTIONS = (
    server_probe(
        "stop-strings", "stop strings", "agents end turns by stop strings; a server that ignores them writes on",
        _stop_strings, 8,
    ),
    server_probe("max-tokens", "max_tokens", "a limit that is not kept costs money and time", _max_tokens, 3),
    server_probe("logprobs", "logprobs", "NaN logits show here before they show in texts", _logprobs, 4),
    server_probe("usage", "usage counts", "a wrong count of the prompt shows a wrong template or tokenizer", _usage, 8),
)  # fmt: skip
