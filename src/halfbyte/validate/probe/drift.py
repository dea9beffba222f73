"""Against a reference: both servers predict the same texts, token by token, and a broken kernel shows in a minute.

Nothing is generated: a text is sent with `echo`, and each side says how likely it finds every token. One damaged layer
moves the predictions of all tokens, long before answers become wrong. What is exact and what is a bound is said in
drift_measures.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pydantic import Field

from halfbyte.validate.probe.answers import Answer
from halfbyte.validate.probe.client import Client
from halfbyte.validate.probe.drift_measures import FAR, PLAUSIBLE, Place, Step, read_places, step, summary
from halfbyte.validate.probe.kinds import Cost, Finding, Probe, Setting, Shown, Verdict, broken, skipped
from halfbyte.validate.probe.marks import MOST_SHOWN
from halfbyte.validate.probe.profiles import Questions

NAME = "drift"
TOP = 20  # the most that vLLM tells without a setting
TOKENS_PER_CHARACTER = 0.35


class Limits(Questions):
    """How far apart two sound servers of the same model may be."""

    most_kl: float = Field(gt=0)  # nat, in the mean
    least_stable_top1: float = Field(gt=0, le=1)
    most_error_p95: float = Field(gt=0)  # nat, of the text's own tokens
    most_far: float = Field(ge=0)  # share of the tokens: a wrong expert moves few tokens, and those far
    reason: str  # where the numbers come from


class Drift(Limits):
    """Texts to predict."""

    texts: list[str] = Field(min_length=1)


def _predictions(client: Client, texts: list[str]) -> list[Answer]:
    asks = [client.completion_ask(text, max_tokens=1, echo=True, logprobs=TOP) for text in texts]
    return client.ask_all(asks)


def _run(setting: Setting) -> Finding:
    assert setting.reference is not None
    section = setting.profile.need(NAME, Drift)
    sides: list[list[Answer]] = [_predictions(one, section.texts) for one in (setting.client, setting.reference)]
    if (unanswered := without_answers(sides, "of a prompt")) is not None:
        return unanswered
    steps: list[Step] = []
    shown: list[tuple[float, Shown]] = []
    for ours, theirs in zip(*sides, strict=True):
        mine, its = read_places(ours.logprobs), read_places(theirs.logprobs)
        if mine is None or its is None:
            who = "the server" if mine is None else "the reference"
            return skipped(f"{who} does not tell log-probabilities of a prompt (echo with logprobs)")
        mine, its = _of_the_prompt(mine, ours), _of_the_prompt(its, theirs)
        if not mine or not its:
            who = "the reference" if mine else "the server"
            return skipped(f"{who} tells log-probabilities of its answer only, not of the prompt (it ignores echo)")
        names = [[place.token for place in one] for one in (mine, its)]
        if names[0] != names[1]:
            return _other_tokens(names, ours)
        found = [step(a, b) for a, b in zip(mine, its, strict=True)]
        steps += found
        shown.append(worst_step(found, ours))
    if not any(one.plausible for one in steps):
        return skipped(f"the reference finds no token of the texts likelier than {PLAUSIBLE:.0%}: another model?")
    return judge_drift(section, steps, shown)


def without_answers(sides: list[list[Answer]], what: str) -> Finding | None:
    """Return why there is nothing to compare: a side refuses log-probabilities, or did not answer; None if both did."""
    for who, answers in zip(("the server", "the reference"), sides, strict=True):
        errors = [answer for answer in answers if answer.error]
        if errors and all(answer.status is not None and answer.status < 500 for answer in errors):  # noqa: PLR2004
            return skipped(f"{who} refuses log-probabilities {what}: {errors[0].error}")
        if errors:
            return broken(f"{who}: {errors[0].error}")
    return None


def _of_the_prompt(places: list[Place], answer: Answer) -> list[Place]:
    """Leave out the one token that was generated."""
    return places[: max(0, len(places) - answer.completion_tokens)] if answer.completion_tokens else places[:-1]


def _other_tokens(names: list[list[str]], answer: Answer) -> Finding:
    at = next((n for n, (a, b) in enumerate(zip(*names, strict=False)) if a != b), min(map(len, names)))
    said = [repr(one[at]) if at < len(one) else "the end" for one in names]
    text = "".join(names[0])
    start = len("".join(names[0][:at]))
    what = f"token {at + 2} is {said[0]}, at the reference {said[1]}"
    shown = Shown(text, what, start, start + len(names[0][at]) if at < len(names[0]) else start, answer.id)
    return Finding(Verdict.FAILED, "the same text has other tokens", "the same tokens", {}, (shown,), "tokenizer")


def worst_step(steps: list[Step], answer: Answer) -> tuple[float, Shown]:
    """Return the token where both sides are furthest apart, marked in its text, and how far that is."""
    at = max(range(len(steps)), key=lambda n: (steps[n].plausible, steps[n].kl, steps[n].error))
    one, text = steps[at], "".join(part.token for part in steps)
    start = len("".join(part.token for part in steps[:at]))
    what = f"at least {one.kl:.2g} nat apart; log-probability {one.ours:.2f}, at the reference {one.theirs:.2f}"
    return one.kl * one.plausible, Shown(text, what, start, start + len(one.token), answer.id)


def judge_drift(section: Limits, steps: list[Step], worst: list[tuple[float, Shown]]) -> Finding:
    """Hold the differences of all tokens against the limits; of the texts the worst are shown."""
    numbers = summary(steps)
    shown = [one for _, one in sorted(worst, key=lambda pair: -pair[0])]
    limits: list[tuple[str, bool]] = [
        (f"KL at most {section.most_kl:g} nat", numbers["kl_at_least"] <= section.most_kl),
        (f"top-1 {section.least_stable_top1:.1%}", numbers["stable_top1"] >= section.least_stable_top1),
        (f"p95 error {section.most_error_p95:g} nat", numbers["error_p95"] <= section.most_error_p95),
        (f"{section.most_far:.1%} further than {FAR:g} nat", numbers["far"] <= section.most_far),
    ]
    sound = all(kept for _, kept in limits)
    more: dict[str, Any] = {"missed": [what for what, kept in limits if not kept], "limits_from": section.reason}
    return Finding(
        Verdict.PASSED if sound else Verdict.FAILED,
        f"KL {numbers['kl_at_least']:.2g} nat, same first token {numbers['stable_top1']:.1%}, "
        f"p95 error {numbers['error_p95']:.2g} nat, {numbers['far']:.1%} far, over {numbers['tokens']:,} tokens",
        ", ".join(what for what, _ in limits),
        {**numbers, **more},
        () if sound else tuple(shown[:MOST_SHOWN]),
        None if sound else "drift",
    )


def lacks_reference(name: str) -> Callable[[Setting], str | None]:
    """Return what says why a probe with such texts cannot compare: nothing to compare with, or no texts."""

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
