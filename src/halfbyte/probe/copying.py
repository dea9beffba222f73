"""Copy fidelity: names, codes, scripts and look-alike letters, compared character by character.

The texts include the keep192 card's own failures: Warsaw became Warszaw, Check_Spark_192 became Check_SSpark_192, and
the Arabic yeh became the Persian one. Readers cannot see the last one, so the report names the first wrong character.
"""

from __future__ import annotations

import random

from pydantic import Field

from halfbyte.probe.answers import Answer
from halfbyte.probe.card.checks import same_text
from halfbyte.probe.card.items import lacks_section
from halfbyte.probe.judging import each, judged
from halfbyte.probe.kinds import (
    Cost,
    Finding,
    Probe,
    Setting,
    Shown,
)
from halfbyte.probe.profiles import Questions

NAME = "copying"
_TOKENS_PER_CHARACTER = 0.6


class Copying(Questions):
    """Texts to copy and the prompts for them."""

    ask: list[str] = Field(min_length=1)  # each contains {text}; used in turn
    always: list[str] = Field(default_factory=list[str])  # the card's own failures
    texts: list[str] = Field(min_length=1)
    take: int = Field(gt=0)  # number of texts, chosen by the seed
    allowed: int = Field(ge=0)  # number of copies that may be wrong
    max_tokens: int = Field(gt=0)

    def chosen(self, seed: int) -> list[str]:
        """Return the texts of a run."""
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
    prompt = int(sum(30 + len(text) * _TOKENS_PER_CHARACTER for text in texts))
    return Cost(len(texts), prompt, len(texts) * 32, setting.profile.concurrency)


COPYING = Probe(
    NAME, "prose", "copy fidelity",
    "names and codes with one changed letter pass every benchmark but break programs", True,
    _run, _cost, lacks_section(NAME),
)  # fmt: skip
