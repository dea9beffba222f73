"""Garbage: runs of token 0 ("!!!!"), empty answers that count tokens, texts without words, another language.

NaN logits make the first token of the vocabulary the top-1 token. Whether that happens depends on the prompt length and
on the rest of the batch, so prompts of several lengths are sent concurrently.
"""

from __future__ import annotations

import re

from pydantic import Field

from halfbyte.degeneracy.defects import letters_by_script, script_drift
from halfbyte.probe.answers import Answer
from halfbyte.probe.card.items import lacks_section
from halfbyte.probe.judging import each, judged
from halfbyte.probe.kinds import (
    Cost,
    Finding,
    Probe,
    Setting,
    Shown,
)
from halfbyte.probe.marks import defects, whole
from halfbyte.probe.profiles import Questions

GARBAGE, LANGUAGE = "garbage", "language"
_RUN = re.compile(r"!{6,}|\?{12,}|\x00+")  # healthy texts have at most five
_FEWEST_CHARACTERS = 24  # in shorter texts letters are not counted
_FEWEST_LETTERS = 0.35  # of all characters except whitespace: tables and formulas have more
_AT_ONCE = 8


class Garbage(Questions):
    """Prompts with answers in words; some follow more text, so that lengths differ."""

    prompts: list[str] = Field(min_length=1)
    before: str  # repeated
    copies: list[int] = Field(min_length=1)  # numbers of repetitions, used in turn
    max_tokens: int = Field(gt=0)


class Language(Questions):
    """Prompts by the script of their answers: latin, greek, han ..."""

    prompts: dict[str, list[str]] = Field(min_length=1)
    max_tokens: int = Field(gt=0)


def wrong_text(answer: Answer) -> list[Shown]:
    """Return faults that no model with finite logits has."""
    for text in (answer.text, answer.reasoning or ""):
        match = _RUN.search(text)
        if match:
            return [Shown(text, "repeated-character: a run of token 0", *match.span(), answer.id)]
    faults = defects(answer, "prose")
    if faults:
        return faults
    written = answer.text + (answer.reasoning or "")
    if not written.strip() and not answer.tool_calls:
        return [whole(answer, f"empty, with {answer.completion_tokens} tokens")]
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
    answers = client.ask_all([client.chat_ask(prompt, max_tokens=section.max_tokens) for prompt in prompts], _AT_ONCE)
    wrongs = each(answers, lambda _, answer: wrong_text(answer))
    return judged(answers, wrongs, what="consist of words", cause="exclamation-marks")


def _room(setting: Setting, section: Garbage) -> int:
    """Return how many repetitions fit, if a token has at least one character."""
    free = setting.context - section.max_tokens - max(map(len, section.prompts)) - 64
    return max(0, free // max(1, len(section.before)))


def _language(setting: Setting) -> Finding:
    section, client = setting.profile.need(LANGUAGE, Language), setting.client
    prompts = [(script, prompt) for script, group in section.prompts.items() for prompt in group]
    answers = client.ask_all([client.chat_ask(prompt, max_tokens=section.max_tokens) for _, prompt in prompts])

    def wrong(number: int, answer: Answer) -> list[Shown]:
        if not answer.text.strip():
            return [whole(answer, "no content")]
        drift = script_drift(answer.text, prompts[number][0])
        return [Shown(answer.text, f"{it.kind}: {it.detail}", it.start, it.end, answer.id) for it in drift]

    return judged(answers, each(answers, wrong), what="keep the language", cause="language")


def _garbage_cost(setting: Setting) -> Cost:
    section = setting.profile.section(GARBAGE, Garbage)
    if section is None:
        return Cost(0, 0, 0)
    count, copies = len(section.prompts), sum(section.copies) / len(section.copies)
    prompt = int(count * (30 + copies * len(section.before) * 0.3))
    return Cost(count, prompt, count * section.max_tokens, _AT_ONCE)


def _language_cost(setting: Setting) -> Cost:
    section = setting.profile.section(LANGUAGE, Language)
    count = sum(map(len, section.prompts.values())) if section else 0
    return Cost(count, count * 40, count * (section.max_tokens if section else 0), setting.profile.concurrency)


GARBAGES = (
    Probe(
        GARBAGE, "prose", "token 0 and NaN", "NaN logits write \"!!!!\" only at some lengths and batch sizes", True,
        _garbage, _garbage_cost, lacks_section(GARBAGE),
    ),
    Probe(
        LANGUAGE, "prose", "language drift",
        "a damaged or pruned model slips into another language in the middle of an answer", True,
        _language, _language_cost, lacks_section(LANGUAGE),
    ),
)  # fmt: skip
