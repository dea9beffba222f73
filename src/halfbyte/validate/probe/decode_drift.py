"""Against a reference, while writing: what a server predicts from its own KV cache, one token after the other.

`drift` reads a prompt at once, and engines then compute attention from what they have just computed: a KV cache that is
too coarse, or written wrongly, is never read. Here both servers continue the same texts greedily and tell what they
predict. Up to the first token that differs both have the same text before them, so that their predictions compare; what
comes after it is not looked at.

A greedy token that is not its own server's likeliest needs no reference to be wrong: somebody changes what is chosen,
with a penalty for repetitions for one.
"""

from __future__ import annotations

from pydantic import Field

from halfbyte.validate.probe.answers import Answer
from halfbyte.validate.probe.drift import (
    TOKENS_PER_CHARACTER,
    TOP,
    Limits,
    judge_drift,
    lacks_reference,
    without_answers,
    worst_step,
)
from halfbyte.validate.probe.drift_measures import MARGIN, Place, Step, read_places, step
from halfbyte.validate.probe.kinds import Cost, Finding, Probe, Setting, Shown, Verdict, skipped
from halfbyte.validate.probe.marks import MOST_SHOWN

NAME = "decode-drift"


class DecodeDrift(Limits):
    """Texts to continue."""

    prompts: list[str] = Field(min_length=1)
    tokens: int = Field(64, ge=1)  # that are written of each


def _run(setting: Setting) -> Finding:
    assert setting.reference is not None
    section = setting.profile.need(NAME, DecodeDrift)
    sides: list[list[Answer]] = []
    for client in (setting.client, setting.reference):
        asks = [client.completion_ask(one, max_tokens=section.tokens, logprobs=TOP) for one in section.prompts]
        sides.append(client.ask_all(asks))
    if (unanswered := without_answers(sides, "of what it writes")) is not None:
        return unanswered
    steps: list[Step] = []
    worst: list[tuple[float, Shown]] = []
    others: list[Shown] = []
    written = 0
    for ours, theirs in zip(*sides, strict=True):
        mine, its = (read_places(one.logprobs, written=True) for one in (ours, theirs))
        if mine is None or its is None:
            who = "the server" if mine is None else "the reference"
            return skipped(f"{who} does not tell log-probabilities of what it writes")
        others += _not_likeliest(mine, ours)
        found = same_text(mine, its)
        written += len(its)
        steps += found
        worst.append(worst_step(found, ours))
    if others:
        return _changed_choice(others, sum(len(answer.text) > 0 for answer in sides[0]))
    judged = judge_drift(section, steps, worst)
    return Finding(
        judged.verdict, f"{judged.measured}; {len(steps):,} of {written:,} written alike", judged.threshold,
        {**judged.numbers, "written": written, "alike": len(steps)}, judged.shown, judged.cause,
    )  # fmt: skip


def same_text(ours: list[Place], theirs: list[Place]) -> list[Step]:
    """Compare the predictions up to the first token that differs, which is the last that both make of the same text."""
    found: list[Step] = []
    for mine, its in zip(ours, theirs, strict=False):
        lowest = min(mine.top.values())  # at most that, where it is not named
        found.append(step(Place(its.token, mine.top.get(its.token, lowest), mine.top), its))
        if mine.token != its.token:
            break
    return found


def _not_likeliest(places: list[Place], answer: Answer) -> list[Shown]:
    """Return the first greedy token that its own server finds clearly less likely than another."""
    for at, place in enumerate(places):
        first = max(place.top, key=place.top.__getitem__)
        if place.top[first] - place.logprob > MARGIN:
            start = len("".join(one.token for one in places[:at]))
            what = f"token {at + 1} was chosen, and {first!r} is {place.top[first] - place.logprob:.2f} nat likelier"
            text = "".join(one.token for one in places)
            return [Shown(text, what, start, start + len(place.token), answer.id)]
    return []


def _changed_choice(others: list[Shown], of: int) -> Finding:
    measured = f"{len(others)} of {of} greedy texts have a token that is not the likeliest"
    numbers = {"texts": of, "not_likeliest": len(others)}
    shown = tuple(others[:MOST_SHOWN])
    return Finding(Verdict.FAILED, measured, "every greedy token is the likeliest", numbers, shown, "greedy")


def _cost(setting: Setting) -> Cost:
    section = setting.profile.section(NAME, DecodeDrift)
    if section is None or setting.reference is None:
        return Cost(0, 0, 0)
    requests = 2 * len(section.prompts)
    prompt = 2 * sum(map(len, section.prompts)) * TOKENS_PER_CHARACTER
    return Cost(requests, int(prompt), requests * section.tokens)


DECODE_DRIFT = Probe(
    NAME, "reference", "log-probabilities against the reference, while writing",
    "a KV cache that is too coarse, or a changed sampler, is not in the reading of a prompt", True, _run, _cost,
    lacks_reference(NAME),
)  # fmt: skip
