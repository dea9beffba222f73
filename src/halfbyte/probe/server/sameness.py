"""Greedy answers must be repeatable: one after the other, in a batch, and with a cold or warm prefix cache.

Kernels may sum in another order at another batch size, which can change the choice between two nearly equally likely
tokens. So a difference is judged by where it starts: at a token with a clear margin, it is a fault.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from halfbyte.probe.answers import Answer
from halfbyte.probe.card.contexts import long_turns
from halfbyte.probe.context import Turns
from halfbyte.probe.judging import no_answers, share_of
from halfbyte.probe.kinds import Finding, Setting, Shown, Verdict
from halfbyte.probe.marks import first_difference
from halfbyte.probe.server.prompts import questions, server_probe

AT_ONCE = 8
_WARM = 4  # prompts with a shared prefix
_PREFIX_SHARE = 0.5
SURE = 0.5  # nat between the top two tokens: no order of summation moves logits that far
_TOP = 2


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
            return top[0] - top[1] if len(top) >= _TOP else None
    return None


def compare(pairs: Sequence[tuple[Answer, Answer]], what: str, *, needed_share: float = 1.0) -> Finding:
    """Return the finding over pairs of answers that should be equal."""
    unusable = no_answers([answer for pair in pairs for answer in pair])
    if unusable:
        return unusable
    equal, ties = 0, 0
    shown: list[Shown] = []
    for a, b in pairs:
        if a.error or b.error:
            shown.append(Shown(a.error or b.error or "", "no usable answer", 0, 0, (a if a.error else b).id))
            continue
        difference = first_difference(_full_text(a), _full_text(b), b.id)
        if difference is None and (a.finish_reason, len(a.tool_calls)) == (b.finish_reason, len(b.tool_calls)):
            equal += 1
            continue
        difference = difference or Shown(_full_text(b), f"{b.finish_reason} instead of {a.finish_reason}", 0, 0, b.id)
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
    return {"max_tokens": questions(setting).max_tokens, "logprobs": True, "top_logprobs": _TOP}


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
