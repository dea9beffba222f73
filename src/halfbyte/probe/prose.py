"""Open-ended prose: how often it loops, and how often it does not end.

Users saw loops of a pruned model that had passed all bounded probes. Every prompt is sent at every temperature as
a stream, which is canceled when it loops. Both probes use the same answers: the second takes them from the trace.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from pydantic import Field

from halfbyte.degeneracy.loop_test import open_prompts
from halfbyte.probe.answers import Answer
from halfbyte.probe.card.items import lacks_section
from halfbyte.probe.client import Ask, Client
from halfbyte.probe.judging import no_answers
from halfbyte.probe.kinds import (
    Cost,
    Finding,
    Probe,
    Setting,
    Shown,
    Verdict,
)
from halfbyte.probe.profiles import Questions
from halfbyte.probe.rates import Rate, judge_rate, rate_of
from halfbyte.probe.watching import cancel_on_loop, loops

SECTION = "prose"
_PROMPT_TOKENS = 40


class Prose(Questions):
    """Prompts, and the shares of bad answers that no healthy model reaches."""

    prompts: list[str] = Field(default_factory=open_prompts)
    take: int = Field(gt=0)  # number of prompts, chosen by the seed
    temperatures: list[float] = Field(min_length=1)
    max_tokens: int = Field(gt=0)
    tolerated_loops: float = Field(ge=0, lt=1)
    tolerated_unfinished: float = Field(ge=0, lt=1)

    def chosen(self, seed: int) -> list[str]:
        """Return the prompts of a run."""
        return random.Random(seed).sample(self.prompts, min(self.take, len(self.prompts)))


Bad = Callable[[Answer], list[Shown]]


def _asks(client: Client, prose: Prose, seed: int) -> list[Ask]:
    """Return the requests: all temperatures of the first prompt, then of the next."""
    return [
        client.chat_ask(
            prompt, temperature=temperature, max_tokens=prose.max_tokens, stream=True, watch=cancel_on_loop("prose")
        )
        for prompt in prose.chosen(seed)
        for temperature in prose.temperatures
    ]


def _answers(client: Client, prose: Prose, seed: int) -> list[Answer]:
    return client.ask_all(_asks(client, prose, seed))


def _rate(answers: Sequence[Answer], each: int, bad: Bad) -> tuple[Rate, list[Shown]]:
    """Count bad answers by prompt; answers with errors are left out, also of the interval."""
    faults = [None if answer.error else bad(answer) for answer in answers]
    prompts = [faults[at : at + each] for at in range(0, len(faults), each)]
    flags = [[bool(shown) for shown in prompt if shown is not None] for prompt in prompts]
    return rate_of(flags), [fault for shown in faults for fault in shown or ()]


def _unfinished(answer: Answer) -> list[Shown]:
    """Return a text that the token limit cut; loops are counted by the other probe."""
    if answer.finish_reason != "length" or loops(answer):
        return []
    text = answer.text or answer.reasoning or ""
    return [Shown(text, "does not end", max(0, len(text) - 40), len(text), answer.id)]


def _judged(setting: Setting, bad: Bad, tolerated: float, what: str, cause: str) -> Finding:
    prose = setting.profile.need(SECTION, Prose)
    each = len(prose.temperatures)
    answers = _answers(setting.client, prose, setting.seed)
    unusable = no_answers(answers)
    if unusable:
        return unusable
    ours, shown = _rate(answers, each, bad)
    theirs: Rate | None = None
    if setting.reference is not None:
        others = _answers(setting.reference, prose, setting.seed)
        theirs = None if no_answers(others) else _rate(others, each, bad)[0]
    judged = judge_rate(ours, theirs, tolerated, what)
    by_heat = {f"{value:g}": _rate(answers[at::each], 1, bad)[0].found for at, value in enumerate(prose.temperatures)}
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
    clients = [client for client in (setting.client, setting.reference) if client is not None]
    count = sum(len(client.unanswered(_asks(client, prose, setting.seed))) for client in clients)
    return Cost(count, count * _PROMPT_TOKENS, count * prose.max_tokens, setting.profile.concurrency)


PROSE = (
    Probe(
        "prose-loops", "prose", "loops in open prose",
        "a pruned model can pass every bounded task and still never end a story",
        True, _loops, _cost, lacks_section(SECTION),
    ),
    Probe(
        "prose-ends", "prose", "open prose ends",
        "a lost end-of-turn token shows only in open-ended answers",
        True, _endings, _cost, lacks_section(SECTION),
    ),
)  # fmt: skip
