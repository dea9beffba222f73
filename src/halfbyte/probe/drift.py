"""Compare log-probabilities with a reference, token by token: of the same texts, and while decoding.

A broken kernel shows in a minute. For `drift` nothing is generated: a text is sent with `echo`, and each server reports
the log-probability of every token. One damaged layer moves the predictions of all tokens, long before answers become
wrong. drift_measures explains which metrics are exact and which are bounds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pydantic import Field

from halfbyte.probe.answers import Answer
from halfbyte.probe.client import Client
from halfbyte.probe.drift_measures import (
    FAR,
    MARGIN,
    PLAUSIBLE,
    Place,
    Step,
    read_places,
    step,
    summary,
)
from halfbyte.probe.judging import MOST_SHOWN
from halfbyte.probe.probe import (
    Cost,
    Excerpt,
    Finding,
    Probe,
    Setting,
    Verdict,
    broken,
    skipped,
)
from halfbyte.probe.profiles import Questions

NAME = "drift"
TOP = 20  # vLLM's default maximum
TOKENS_PER_CHARACTER = 0.35


class Limits(Questions):
    """How far two healthy servers of the same model may differ."""

    most_kl: float = Field(gt=0)  # nat, mean
    least_stable_top1: float = Field(gt=0, le=1)
    most_error_p95: float = Field(gt=0)  # nat, of the text's own tokens
    most_far: float = Field(ge=0)  # share of the tokens: a wrong expert moves few tokens, but far
    reason: str  # origin of the limits


class Drift(Limits):
    """Texts to predict."""

    texts: list[str] = Field(min_length=1)


def _predictions(client: Client, texts: list[str]) -> list[Answer]:
    asks = [client.completion_ask(text, max_tokens=1, echo=True, logprobs=TOP) for text in texts]
    return client.ask_all(asks)


def _run(setting: Setting) -> Finding:
    assert setting.reference is not None
    section = setting.profile.need(NAME, Drift)
    sides: list[list[Answer]] = [_predictions(client, section.texts) for client in (setting.client, setting.reference)]
    if (unanswered := without_answers(sides, "of a prompt")) is not None:
        return unanswered
    steps: list[Step] = []
    shown: list[tuple[float, Excerpt]] = []
    for ours, theirs in zip(*sides, strict=True):
        our_places, their_places = read_places(ours.logprobs), read_places(theirs.logprobs)
        if our_places is None or their_places is None:
            who = "the server" if our_places is None else "the reference"
            return skipped(f"{who} does not report log-probabilities of a prompt (echo with logprobs)")
        our_places, their_places = _of_the_prompt(our_places, ours), _of_the_prompt(their_places, theirs)
        if not our_places or not their_places:
            who = "the reference" if our_places else "the server"
            return skipped(f"{who} ignores echo: it reports log-probabilities only of its answer, not of the prompt")
        names = [[place.token for place in places] for places in (our_places, their_places)]
        if names[0] != names[1]:
            return _different_tokens(names, ours)
        compared = [step(a, b) for a, b in zip(our_places, their_places, strict=True)]
        steps += compared
        shown.append(worst_step(compared, ours))
    if not any(compared.plausible for compared in steps):
        return skipped(
            f"the reference gives no token of the texts a probability of {PLAUSIBLE:.0%} or more: is it another model?"
        )
    return judge_drift(section, steps, shown)


def without_answers(sides: list[list[Answer]], what: str) -> Finding | None:
    """Return a finding if a server refuses log-probabilities or did not answer; None if both answered."""
    for who, answers in zip(("the server", "the reference"), sides, strict=True):
        errors = [answer for answer in answers if answer.error]
        if errors and all(answer.status is not None and answer.status < 500 for answer in errors):  # noqa: PLR2004
            return skipped(f"{who} refuses log-probabilities {what}: {errors[0].error}")
        if errors:
            return broken(f"{who}: {errors[0].error}")
    return None


def _of_the_prompt(places: list[Place], answer: Answer) -> list[Place]:
    """Drop the generated token."""
    return places[: max(0, len(places) - answer.completion_tokens)] if answer.completion_tokens else places[:-1]


def _different_tokens(names: list[list[str]], answer: Answer) -> Finding:
    at = next((n for n, (a, b) in enumerate(zip(*names, strict=False)) if a != b), min(map(len, names)))
    tokens = [repr(side[at]) if at < len(side) else "the end" for side in names]
    text = "".join(names[0])
    start = len("".join(names[0][:at]))
    what = f"token {at + 2} is {tokens[0]}, but {tokens[1]} at the reference"
    shown = Excerpt(text, what, start, start + len(names[0][at]) if at < len(names[0]) else start, answer.id)
    return Finding(Verdict.FAILED, "the text is tokenized differently", "the same tokens", {}, (shown,), "tokenizer")


def worst_step(steps: list[Step], answer: Answer) -> tuple[float, Excerpt]:
    """Return the largest difference of a text, and the text with that token marked."""
    at = max(range(len(steps)), key=lambda n: (steps[n].plausible, steps[n].kl, steps[n].error))
    worst, text = steps[at], "".join(part.token for part in steps)
    start = len("".join(part.token for part in steps[:at]))
    what = f"KL at least {worst.kl:.2g} nat; log-probability {worst.ours:.2f}, {worst.theirs:.2f} at the reference"
    return worst.kl * worst.plausible, Excerpt(text, what, start, start + len(worst.token), answer.id)


def judge_drift(section: Limits, steps: list[Step], worst: list[tuple[float, Excerpt]]) -> Finding:
    """Compare the metrics with the limits; show the texts with the largest differences."""
    numbers = summary(steps)
    shown = [text for _, text in sorted(worst, key=lambda pair: -pair[0])]
    limits: list[tuple[str, bool]] = [
        (f"KL at most {section.most_kl:g} nat", numbers["kl_at_least"] <= section.most_kl),
        (f"top-1 {section.least_stable_top1:.1%}", numbers["stable_top1"] >= section.least_stable_top1),
        (f"p95 error {section.most_error_p95:g} nat", numbers["error_p95"] <= section.most_error_p95),
        (f"{section.most_far:.1%} beyond {FAR:g} nat", numbers["far"] <= section.most_far),
    ]
    passed = all(kept for _, kept in limits)
    extra: dict[str, Any] = {"missed": [what for what, kept in limits if not kept], "limits_from": section.reason}
    return Finding(
        Verdict.PASSED if passed else Verdict.FAILED,
        f"KL {numbers['kl_at_least']:.2g} nat, top-1 agreement {numbers['stable_top1']:.1%}, "
        f"p95 error {numbers['error_p95']:.2g} nat, "
        f"{numbers['far']:.1%} beyond {FAR:g} nat, over {numbers['tokens']:,} tokens",
        ", ".join(what for what, _ in limits),
        {**numbers, **extra},
        () if passed else tuple(shown[:MOST_SHOWN]),
        None if passed else "drift",
    )


def lacks_reference(name: str) -> Callable[[Setting], str | None]:
    """Return a check that there are a reference and texts to compare."""

    def lacks(setting: Setting) -> str | None:
        if setting.reference is None:
            return "needs a reference: --against URL2"
        return None if name in setting.profile.questions else f"the profile {setting.profile.name} has no such texts"

    return lacks


def _cost(setting: Setting) -> Cost:
    section = setting.profile.section(NAME, Drift)
    if section is None or setting.reference is None:
        return Cost(0, 0, 0)
    tokens = sum(map(len, section.texts)) * TOKENS_PER_CHARACTER
    return Cost(2 * len(section.texts), int(2 * tokens), 2 * len(section.texts))


DRIFT = Probe(
    NAME, "reference", "log-probabilities against the reference",
    "a broken kernel or layer moves every prediction, long before answers become wrong", True, _run, _cost,
    lacks_reference(NAME),
)  # fmt: skip


# Compare log-probabilities with a reference while decoding, from the KV cache of each server.
#
# `drift` prefills a prompt at once, so attention uses values that were just computed and never reads a KV cache that
# is too coarse or written wrongly. Here both servers continue the same texts greedily and report their predictions.
# Up to the first token that differs, both have the same context, so their predictions are comparable. Later tokens
# are ignored.
#
# A greedy token that is not its own server's top-1 token is wrong without any reference: something changes the
# choice, for example a repetition penalty.

DECODE_NAME = "decode-drift"


class DecodeDrift(Limits):
    """Texts to continue."""

    prompts: list[str] = Field(min_length=1)
    tokens: int = Field(64, ge=1)  # generated for each text


def _run_decode(setting: Setting) -> Finding:
    assert setting.reference is not None
    section = setting.profile.need(DECODE_NAME, DecodeDrift)
    sides: list[list[Answer]] = []
    for client in (setting.client, setting.reference):
        asks = [client.completion_ask(prompt, max_tokens=section.tokens, logprobs=TOP) for prompt in section.prompts]
        sides.append(client.ask_all(asks))
    if (unanswered := without_answers(sides, "of generated tokens")) is not None:
        return unanswered
    steps: list[Step] = []
    worst: list[tuple[float, Excerpt]] = []
    not_top1: list[Excerpt] = []
    written = 0
    for ours, theirs in zip(*sides, strict=True):
        our_places, their_places = (read_places(answer.logprobs, written=True) for answer in (ours, theirs))
        if our_places is None or their_places is None:
            who = "the server" if our_places is None else "the reference"
            return skipped(f"{who} does not report log-probabilities of generated tokens")
        not_top1 += _not_top1(our_places, ours)
        compared = same_text(our_places, their_places)
        written += len(their_places)
        steps += compared
        worst.append(worst_step(compared, ours))
    if not_top1:
        return _changed_choice(not_top1, sum(len(answer.text) > 0 for answer in sides[0]))
    judged = judge_drift(section, steps, worst)
    return Finding(
        judged.verdict, f"{judged.measured}; {len(steps):,} of {written:,} generated tokens compared", judged.threshold,
        {**judged.numbers, "generated": written, "compared": len(steps)}, judged.excerpts, judged.cause,
    )  # fmt: skip


def same_text(ours: list[Place], theirs: list[Place]) -> list[Step]:
    """Compare the predictions up to and including the first token that differs."""
    steps: list[Step] = []
    for our_place, their_place in zip(ours, theirs, strict=False):
        lowest = min(our_place.top.values())  # upper bound for a token that is not reported
        token = their_place.token
        steps.append(step(Place(token, our_place.top.get(token, lowest), our_place.top), their_place))
        if our_place.token != their_place.token:
            break
    return steps


def _not_top1(places: list[Place], answer: Answer) -> list[Excerpt]:
    """Return the first greedy token that its own server finds clearly less likely than another."""
    for at, place in enumerate(places):
        first = max(place.top, key=place.top.__getitem__)
        if place.top[first] - place.logprob > MARGIN:
            start = len("".join(before.token for before in places[:at]))
            what = f"token {at + 1} was chosen, but {first!r} is {place.top[first] - place.logprob:.2f} nat more likely"
            text = "".join(each.token for each in places)
            return [Excerpt(text, what, start, start + len(place.token), answer.id)]
    return []


def _changed_choice(not_top1: list[Excerpt], of: int) -> Finding:
    measured = f"{len(not_top1)} of {of} greedy texts have a token that is not top-1"
    numbers = {"texts": of, "not_likeliest": len(not_top1)}
    shown = tuple(not_top1[:MOST_SHOWN])
    return Finding(Verdict.FAILED, measured, "every greedy token is top-1", numbers, shown, "greedy")


def _decode_cost(setting: Setting) -> Cost:
    section = setting.profile.section(DECODE_NAME, DecodeDrift)
    if section is None or setting.reference is None:
        return Cost(0, 0, 0)
    requests = 2 * len(section.prompts)
    prompt = 2 * sum(map(len, section.prompts)) * TOKENS_PER_CHARACTER
    return Cost(requests, int(prompt), requests * section.tokens)


DECODE_DRIFT = Probe(
    DECODE_NAME, "reference", "log-probabilities against the reference, while decoding",
    "a KV cache that is too coarse, or a changed sampler, does not show in prefill", True, _run_decode, _decode_cost,
    lacks_reference(DECODE_NAME),
)  # fmt: skip
