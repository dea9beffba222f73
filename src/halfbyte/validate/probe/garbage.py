"""Garbage: runs of token 0 ("!!!!"), tokens that are counted and not there, texts of no words, another language.

Logits that are NaN make the first token of the vocabulary the likeliest. That comes and goes with the length of a
prompt and with what else is in the batch, so prompts of several lengths are asked at once.
"""

from __future__ import annotations

import re

from pydantic import Field

from halfbyte.validate.probe.answers import Answer
from halfbyte.validate.probe.card.items import lacks_section
from halfbyte.validate.probe.degeneracy.scripts import letters_by_script, script_drift
from halfbyte.validate.probe.judging import each, judged
from halfbyte.validate.probe.kinds import Cost, Finding, Probe, Setting, Shown
from halfbyte.validate.probe.marks import defects, whole
from halfbyte.validate.probe.profiles import Questions

GARBAGE, LANGUAGE = "garbage", "language"
_RUN = re.compile(r"!{6,}|\?{12,}|\x00+")  # sound texts have three, or five
_FEWEST_CHARACTERS = 24  # of a text whose letters are counted
_FEWEST_LETTERS = 0.35  # of all characters but white space: tables and formulas have more
_AT_ONCE = 8


class Garbage(Questions):
    """Prompts whose answers are words; before some of them stands more text, so that lengths differ."""

    prompts: list[str] = Field(min_length=1)
    before: str  # repeated
    copies: list[int] = Field(min_length=1)  # how often, by turns
    max_tokens: int = Field(gt=0)


class Language(Questions):
    """Prompts by the script that their answers have: latin, greek, han ..."""

    prompts: dict[str, list[str]] = Field(min_length=1)
    max_tokens: int = Field(gt=0)


def wrong_text(answer: Answer) -> list[Shown]:
    """Return what no model with finite logits writes."""
    for text in (answer.text, answer.reasoning or ""):
        match = _RUN.search(text)
        if match:
            return [Shown(text, "repeated-character: token 0 again and again", *match.span(), answer.id)]
    found = defects(answer, "prose")
    if found:
        return found
    written = answer.text + (answer.reasoning or "")
    if not written.strip() and not answer.tool_calls:
        return [whole(answer, f"nothing, in {answer.completion_tokens} tokens")]
    dense = "".join(written.split())
    letters = sum(letters_by_script(dense).values())
    if len(dense) >= _FEWEST_CHARACTERS and letters < _FEWEST_LETTERS * len(dense):
        return [whole(answer, f"{letters} of {len(dense)} characters are letters")]
    return []


def _garbage(setting: Setting) -> Finding:
    section, client = setting.profile.need(GARBAGE, Garbage), setting.client
    prompts = [
        section.before * min(copies, _room(setting, section)) + prompt
        for at, prompt in enumerate(section.prompts)
        for copies in [section.copies[at % len(section.copies)]]
    ]
    answers = client.ask_all([client.chat_ask(one, max_tokens=section.max_tokens) for one in prompts], _AT_ONCE)
    wrongs = each(answers, lambda _, answer: wrong_text(answer))
    return judged(answers, wrongs, what="are words", cause="exclamation-marks")


def _room(setting: Setting, section: Garbage) -> int:
    """Return how often the text before fits: a token has at least one character."""
    free = setting.context - section.max_tokens - max(map(len, section.prompts)) - 64
    return max(0, free // max(1, len(section.before)))


def _language(setting: Setting) -> Finding:
    section, client = setting.profile.need(LANGUAGE, Language), setting.client
    asked = [(script, prompt) for script, prompts in section.prompts.items() for prompt in prompts]
    answers = client.ask_all([client.chat_ask(prompt, max_tokens=section.max_tokens) for _, prompt in asked])

    def wrong(number: int, answer: Answer) -> list[Shown]:
        if not answer.text.strip():
            return [whole(answer, "no content")]
        drift = script_drift(answer.text, asked[number][0])
        return [Shown(answer.text, f"{one.kind}: {one.detail}", one.start, one.end, answer.id) for one in drift]

    return judged(answers, each(answers, wrong), what="keep the language", cause="language")


def _garbage_cost(setting: Setting) -> Cost:
    section = setting.profile.section(GARBAGE, Garbage)
    if section is None:
        return Cost(0, 0, 0)
    count, copies = len(section.prompts), sum(section.copies) / len(section.copies)
    return Cost(count, int(count * (30 + copies * len(section.before) * 0.3)), count * section.max_tokens)


def _language_cost(setting: Setting) -> Cost:
    section = setting.profile.section(LANGUAGE, Language)
    count = sum(map(len, section.prompts.values())) if section else 0
    return Cost(count, count * 40, count * (section.max_tokens if section else 0))


GARBAGES = (
    Probe(
        GARBAGE, "prose", "token 0 and NaN", "NaN logits write \"!!!!\" for some lengths and batches only", True,
        _garbage, _garbage_cost, lacks_section(GARBAGE),
    ),
    Probe(
        LANGUAGE, "prose", "language drift",
        "a damaged or pruned model slips into another language in the middle of an answer", True,
        _language, _language_cost, lacks_section(LANGUAGE),
    ),
)  # fmt: skip
