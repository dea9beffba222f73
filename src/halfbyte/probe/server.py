"""Probes of a server's behavior: request options, invalid requests, repeatable answers."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from pydantic import Field

from halfbyte.endpoint.client import PATHS
from halfbyte.probe.answers import Answer
from halfbyte.probe.client import Ask
from halfbyte.probe.context import Turns
from halfbyte.probe.judging import each, first_difference, judged, no_answers, share_of, whole
from halfbyte.probe.long_context import long_turns
from halfbyte.probe.probe import Cost, Excerpt, Finding, Probe, Setting, Verdict, skipped
from halfbyte.probe.profiles import Questions

SECTION = "server"
_PROMPT_TOKENS = 64  # of one question, about


class ServerQuestions(Questions):
    """Any prompts with stable greedy answers, without a near tie at the first token."""

    prompts: list[str] = Field(min_length=4)  # answers of a few dozen tokens
    unicode_prompt: str  # its answer has multi-byte characters
    endless: str  # its answer is long, to be cut and canceled
    endless_options: dict[str, Any] = Field(default_factory=dict[str, Any])
    max_tokens: int = 96
    repetitions: int = Field(default=20, ge=2)  # of one prompt


def questions(setting: Setting) -> ServerQuestions:
    """Return the profile's section."""
    return setting.profile.need(SECTION, ServerQuestions)


def server_probe(
    name: str,
    title: str,
    reason: str,
    run: Callable[[Setting], Finding],
    requests: int | Callable[[Setting], int] = 1,
    *,
    repeats: bool = False,
) -> Probe:
    """Return a probe of short requests."""

    def cost(setting: Setting) -> Cost:
        tokens = questions(setting).max_tokens
        count = requests if isinstance(requests, int) else requests(setting)
        return Cost(count, count * _PROMPT_TOKENS, count * tokens)

    def lacks(setting: Setting) -> str | None:
        return (
            None
            if SECTION in setting.profile.questions
            else f"the profile {setting.profile.name} has no such questions"
        )

    return Probe(name, "server", title, reason, True, run, cost, lacks, repeats)


# Request options take effect: stop strings, max_tokens, log-probabilities, usage.

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

    def wrong(number: int, answer: Answer) -> Sequence[Excerpt]:
        text = pairs[number][1]
        stop = _stop(text)
        at = answer.text.find(stop)
        if at >= 0:
            return [Excerpt(answer.text, f"contains the stop string {stop!r}", at, at + len(stop), answer.id)]
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

    def wrong(number: int, answer: Answer) -> Sequence[Excerpt]:
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


def _inconsistent(answer: Answer) -> list[Excerpt]:
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

    def wrong(number: int, answer: Answer) -> Sequence[Excerpt]:
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


# Invalid requests must get a 4xx status, not 200 or 500, and must not stop the server.

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
    faults: list[list[Excerpt]] = []
    for what, answer in zip(invalid, answers, strict=True):
        right = answer.status in _CLIENT_ERRORS or (what == _ANY_MODEL and not answer.error)
        outcome = answer.error if answer.error else "answered as if it were valid"
        faults.append([] if right else [Excerpt(answer.text, f"{what}: {outcome}", 0, len(answer.text), answer.id)])
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


# Greedy answers must be repeatable: one after the other, in a batch, and with a cold or warm prefix cache.
#
# Kernels may sum in another order at another batch size, which can change the choice between two nearly equally
# likely tokens. So a difference is judged by where it starts: at a token with a clear margin, it is a fault.

AT_ONCE = 8
_WARM = 4  # prompts with a shared prefix
_PREFIX_SHARE = 0.5
SURE = 0.5  # nat between the top two tokens: no order of summation moves logits that far
_CANDIDATES = 2


def _full_text(answer: Answer) -> str:
    return (answer.reasoning or "") + answer.text


def _margin(answer: Answer, at: int) -> float | None:
    """Return the margin of the token at a character over the next best, in nat; None if it is not reported."""
    read = 0
    for token in answer.token_logprobs:
        read += len(str(token.get("token") or ""))
        if read > at:
            candidates: list[dict[str, Any]] = token.get("top_logprobs") or []
            top = sorted((float(candidate["logprob"]) for candidate in candidates), reverse=True)
            return top[0] - top[1] if len(top) >= _CANDIDATES else None
    return None


def compare(pairs: Sequence[tuple[Answer, Answer]], what: str, *, needed_share: float = 1.0) -> Finding:
    """Return the finding over pairs of answers that should be equal."""
    unusable = no_answers([answer for pair in pairs for answer in pair])
    if unusable:
        return unusable
    equal, ties = 0, 0
    shown: list[Excerpt] = []
    for a, b in pairs:
        if a.error or b.error:
            shown.append(Excerpt(a.error or b.error or "", "no usable answer", 0, 0, (a if a.error else b).id))
            continue
        difference = first_difference(_full_text(a), _full_text(b), b.id)
        if difference is None and (a.finish_reason, len(a.tool_calls)) == (b.finish_reason, len(b.tool_calls)):
            equal += 1
            continue
        difference = difference or Excerpt(_full_text(b), f"{b.finish_reason} instead of {a.finish_reason}", 0, 0, b.id)
        margin = _margin(a, difference.start)
        if margin is not None and margin < SURE:
            ties += 1  # nearly equally likely: not counted against the server
            continue
        shown.append(difference)
    good = equal + ties
    needed = round(needed_share * len(pairs))
    tied = f", {ties} with a near tie" if ties else ""
    return Finding(
        Verdict.PASSED if good >= needed else Verdict.FAILED,
        f"{equal} / {len(pairs)} {what}{tied}",
        f"{needed} / {len(pairs)}, not counting near ties",
        {"equal": share_of(equal, len(pairs)), "near_ties": ties, "sure_from_nat": SURE},
        tuple(shown),
        "not-repeatable" if good < needed else None,
    )


def _options(setting: Setting) -> dict[str, Any]:
    return {"max_tokens": questions(setting).max_tokens, "logprobs": True, "top_logprobs": _CANDIDATES}


def _same_again(setting: Setting) -> Finding:
    prompt, client = questions(setting).prompts[0], setting.client
    first = client.chat(prompt, **_options(setting))
    unusable = no_answers([first])
    if unusable:
        return unusable
    others = [
        client.chat(prompt, repetition=number, **_options(setting))
        for number in range(1, questions(setting).repetitions)
    ]
    return compare([(first, other) for other in others], "repetitions equal the first")


def _same_in_batches(setting: Setting) -> Finding:
    prompts, client = questions(setting).prompts, setting.client
    alone = [client.chat(prompt, repetition=100, **_options(setting)) for prompt in prompts]
    many = [(n, r) for r in range(2) for n in range(len(prompts))]
    together = client.ask_all(
        [client.chat_ask(prompts[n], repetition=101 + r, **_options(setting)) for n, r in many], AT_ONCE
    )
    pairs = [(alone[n], batched) for (n, _), batched in zip(many, together, strict=True)]
    return compare(pairs, "equal alone and in a batch")


def _same_warm(setting: Setting) -> Finding:
    """Send each prompt twice: the second may use the prefix cache, and both answers must be equal."""
    words, client = setting.lengths.words, setting.client
    tokens = min(round(setting.context * _PREFIX_SHARE), 8192)
    pairs: list[tuple[Answer, Answer]] = []
    for number in range(_WARM):
        seed = 7_000_000 + setting.seed * 100 + number

        def build(entries: int, padding: str, seed: int = seed) -> Turns:
            return long_turns(
                words, entries, padding, seed, words.question.format(key=f"{words.first[0]} {words.second[0]}")
            )

        turns = setting.lengths.fit(tokens, build).turns
        options = {**_options(setting), "max_tokens": 32}
        pairs.append((client.chat(turns, **options), client.chat(turns, repetition=1, **options)))
    return compare(pairs, f"equal cold and warm, at {tokens:,} tokens")


SAMENESS = (
    server_probe(
        "same-again", "same prompt repeated", "greedy answers that change indicate a race or leaking state",
        _same_again, lambda setting: questions(setting).repetitions, repeats=True,
    ),
    server_probe(
        "same-in-batch", "batch 1 against batch 8", "a kernel can be right alone and wrong in a batch",
        _same_in_batches, 12,
    ),
    server_probe(
        "same-warm", "cold and warm prefix cache", "a cached prefix that changes answers is a fault of the server",
        _same_warm, 2 * _WARM,
    ),
)  # fmt: skip
