"""Compare log-probabilities with a reference while decoding, from the KV cache of each server.

`drift` prefills a prompt at once, so attention uses values that were just computed and never reads a KV cache that is
too coarse or written wrongly. Here both servers continue the same texts greedily and report their predictions. Up to
the first token that differs, both have the same context, so their predictions are comparable. Later tokens are ignored.

A greedy token that is not its own server's top-1 token is wrong without any reference: something changes the choice,
for example a repetition penalty.
"""

from __future__ import annotations

from pydantic import Field

from halfbyte.probe.answers import Answer
from halfbyte.probe.drift import (
    TOKENS_PER_CHARACTER,
    TOP,
    Limits,
    judge_drift,
    lacks_reference,
    without_answers,
    worst_step,
)
from halfbyte.probe.drift_measures import (
    MARGIN,
    Place,
    Step,
    read_places,
    step,
)
from halfbyte.probe.kinds import (
    Cost,
    Finding,
    Probe,
    Setting,
    Shown,
    Verdict,
    skipped,
)
from halfbyte.probe.marks import MOST_SHOWN

NAME = "decode-drift"


class DecodeDrift(Limits):
    """Texts to continue."""

    prompts: list[str] = Field(min_length=1)
    tokens: int = Field(64, ge=1)  # generated for each text


def _run(setting: Setting) -> Finding:
    assert setting.reference is not None
    section = setting.profile.need(NAME, DecodeDrift)
    sides: list[list[Answer]] = []
    for client in (setting.client, setting.reference):
        asks = [client.completion_ask(prompt, max_tokens=section.tokens, logprobs=TOP) for prompt in section.prompts]
        sides.append(client.ask_all(asks))
    if (unanswered := without_answers(sides, "of generated tokens")) is not None:
        return unanswered
    steps: list[Step] = []
    worst: list[tuple[float, Shown]] = []
    not_top1: list[Shown] = []
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
        {**judged.numbers, "written": written, "alike": len(steps)}, judged.shown, judged.cause,
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


def _not_top1(places: list[Place], answer: Answer) -> list[Shown]:
    """Return the first greedy token that its own server finds clearly less likely than another."""
    for at, place in enumerate(places):
        first = max(place.top, key=place.top.__getitem__)
        if place.top[first] - place.logprob > MARGIN:
            start = len("".join(before.token for before in places[:at]))
            what = f"token {at + 1} was chosen, but {first!r} is {place.top[first] - place.logprob:.2f} nat more likely"
            text = "".join(each.token for each in places)
            return [Shown(text, what, start, start + len(place.token), answer.id)]
    return []


def _changed_choice(not_top1: list[Shown], of: int) -> Finding:
    measured = f"{len(not_top1)} of {of} greedy texts have a token that is not top-1"
    numbers = {"texts": of, "not_likeliest": len(not_top1)}
    shown = tuple(not_top1[:MOST_SHOWN])
    return Finding(Verdict.FAILED, measured, "every greedy token is top-1", numbers, shown, "greedy")


def _cost(setting: Setting) -> Cost:
    section = setting.profile.section(NAME, DecodeDrift)
    if section is None or setting.reference is None:
        return Cost(0, 0, 0)
    requests = 2 * len(section.prompts)
    prompt = 2 * sum(map(len, section.prompts)) * TOKENS_PER_CHARACTER
    return Cost(requests, int(prompt), requests * section.tokens)


DECODE_DRIFT = Probe(
    NAME, "reference", "log-probabilities against the reference, while decoding",
    "a KV cache that is too coarse, or a changed sampler, does not show in prefill", True, _run, _cost,
    lacks_reference(NAME),
)  # fmt: skip
