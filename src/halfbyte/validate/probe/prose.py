"""Open-ended prose: how often it falls into a loop, and how often it does not end.

Users found the loops of a pruned model that all bounded probes had passed. Every prompt is asked at every temperature
in a stream, which is hung up when it loops. Both probes read the same answers: the second takes them from the trace.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from pydantic import Field

from halfbyte.validate.probe.answers import Answer
from halfbyte.validate.probe.card.items import lacks_section
from halfbyte.validate.probe.client import Client
from halfbyte.validate.probe.judging import no_answers
from halfbyte.validate.probe.kinds import Cost, Finding, Probe, Setting, Shown, Verdict
from halfbyte.validate.probe.profiles import Questions
from halfbyte.validate.probe.rates import Rate, judge_rate, rate_of
from halfbyte.validate.probe.watching import loops, until_it_loops
from halfbyte.validate.prompts import open_prompts

SECTION = "prose"
_PROMPT_TOKENS = 40


class Prose(Questions):
    """What is asked, and which shares no sound model reaches."""

    prompts: list[str] = Field(default_factory=open_prompts)
    take: int = Field(gt=0)  # so many prompts, chosen by the seed
    temperatures: list[float] = Field(min_length=1)
    max_tokens: int = Field(gt=0)
    tolerated_loops: float = Field(ge=0, lt=1)
    tolerated_unfinished: float = Field(ge=0, lt=1)

    def chosen(self, seed: int) -> list[str]:
        """Return the prompts of a run."""
        return random.Random(seed).sample(self.prompts, min(self.take, len(self.prompts)))


Bad = Callable[[Answer], list[Shown]]


def _answers(client: Client, prose: Prose, seed: int) -> list[Answer]:
    """Return the answers: all temperatures of the first prompt, then of the next."""
    return client.ask_all(
        [
            client.chat_ask(
                prompt, temperature=heat, max_tokens=prose.max_tokens, stream=True, watch=until_it_loops("prose")
            )
            for prompt in prose.chosen(seed)
            for heat in prose.temperatures
        ]
    )


def _rate(answers: Sequence[Answer], each: int, bad: Bad) -> tuple[Rate, list[Shown]]:
    """Count bad answers by prompt; one that is none is left out, here and in the interval."""
    found = [None if answer.error else bad(answer) for answer in answers]
    parts = [found[at : at + each] for at in range(0, len(found), each)]
    flags = [[bool(one) for one in part if one is not None] for part in parts]
    return rate_of(flags), [shown for one in found for shown in one or ()]


def _unfinished(answer: Answer) -> list[Shown]:
    """A text that was cut off where there was no more room; a loop is counted by the other probe."""
    if answer.finish_reason != "length" or loops(answer):
        return []
    text = answer.text or answer.reasoning or ""
    return [Shown(text, "it does not end", max(0, len(text) - 40), len(text), answer.id)]


def _judged(setting: Setting, bad: Bad, tolerated: float, what: str, cause: str) -> Finding:
    prose = setting.profile.need(SECTION, Prose)
    each = len(prose.temperatures)
    answers = _answers(setting.client, prose, setting.seed)
    nothing = no_answers(answers)
    if nothing:
        return nothing
    ours, shown = _rate(answers, each, bad)
    theirs: Rate | None = None
    if setting.reference is not None:
        others = _answers(setting.reference, prose, setting.seed)
        theirs = None if no_answers(others) else _rate(others, each, bad)[0]
    judged = judge_rate(ours, theirs, tolerated, what)
    by_heat = {f"{heat:g}": _rate(answers[at::each], 1, bad)[0].found for at, heat in enumerate(prose.temperatures)}
    return Finding(
        Verdict.FAILED if judged.too_high else Verdict.PASSED,
        judged.measured,
        judged.threshold,
        {**judged.numbers, "by_temperature": by_heat, "errors": sum(answer.error is not None for answer in answers)},
        tuple(shown),
        cause if judged.too_high else None,
    )


def _loops(setting: Setting) -> Finding:
    tolerated = setting.profile.need(SECTION, Prose).tolerated_loops
    return _judged(setting, loops, tolerated, "loop", "loop")


def _endings(setting: Setting) -> Finding:
    tolerated = setting.profile.need(SECTION, Prose).tolerated_unfinished
    return _judged(setting, _unfinished, tolerated, "do not end", "no-stop")


def _cost(setting: Setting) -> Cost:
    prose = setting.profile.section(SECTION, Prose)
    if prose is None:
        return Cost(0, 0, 0)
    count = len(prose.chosen(setting.seed)) * len(prose.temperatures) * (2 if setting.reference else 1)
    return Cost(count, count * _PROMPT_TOKENS, count * prose.max_tokens)


PROSE = (
    Probe(
        "prose-loops", "prose", "loops in open prose",
        "a pruned model can pass every bounded task and never end a story; users found it, no probe did",
        True, _loops, _cost, lacks_section(SECTION),
    ),
    Probe(
        "prose-ends", "prose", "prose that ends",
        "a lost end-of-turn token shows only where nothing else bounds the answer",
        True, _endings, _cost, lacks_section(SECTION),
    ),
)  # fmt: skip
