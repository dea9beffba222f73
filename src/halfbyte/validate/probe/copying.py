"""Copying character by character: names, codes, scripts, and letters that look alike.

The keep192 card's own failures are among the texts: Warsaw became Warszaw, Check_Spark_192 became Check_SSpark_192, and
the Arabic yeh became the Persian one. A reader does not see the last; so the first wrong character is named.
"""

from __future__ import annotations

import random

from pydantic import Field

from halfbyte.validate.probe.answers import Answer
from halfbyte.validate.probe.card.checks import same_text
from halfbyte.validate.probe.card.items import lacks_section
from halfbyte.validate.probe.judging import each, judged
from halfbyte.validate.probe.kinds import Cost, Finding, Probe, Setting, Shown
from halfbyte.validate.probe.profiles import Questions

NAME = "copying"
_TOKENS_PER_CHARACTER = 0.6


class Copying(Questions):
    """Texts, and how copies of them are asked for."""

    ask: list[str] = Field(min_length=1)  # each has {text}; they take turns
    always: list[str] = Field(default_factory=list[str])  # the card's own failures
    texts: list[str] = Field(min_length=1)
    take: int = Field(gt=0)  # of the texts, chosen by the seed
    allowed: int = Field(ge=0)  # so many copies may be wrong
    max_tokens: int = Field(gt=0)

    def chosen(self, seed: int) -> list[str]:
        """Return what a run copies."""
        return [*self.always, *random.Random(seed).sample(self.texts, min(self.take, len(self.texts)))]


def _run(setting: Setting) -> Finding:
    section, client = setting.profile.need(NAME, Copying), setting.client
    texts = section.chosen(setting.seed)
    prompts = [section.ask[at % len(section.ask)].replace("{text}", text) for at, text in enumerate(texts)]
    answers = client.ask_all([client.chat_ask(prompt, max_tokens=section.max_tokens) for prompt in prompts])

    def wrong(number: int, answer: Answer) -> list[Shown]:
        return same_text(answer, texts[number])

    needed = len(texts) - section.allowed
    return judged(answers, each(answers, wrong), what="copied", needed=needed, cause="copying")


def _cost(setting: Setting) -> Cost:
    section = setting.profile.section(NAME, Copying)
    if section is None:
        return Cost(0, 0, 0)
    texts = section.chosen(setting.seed)
    return Cost(len(texts), int(sum(30 + len(text) * _TOKENS_PER_CHARACTER for text in texts)), len(texts) * 32)


COPYING = Probe(
    NAME, "prose", "copy fidelity",
    "names and codes that come back with one letter changed pass every benchmark, and break a program", True,
    _run, _cost, lacks_section(NAME),
)  # fmt: skip
