"""Probes of free text: loops and endings of open prose, copies, garbage, language drift.

Users saw loops of a pruned model that had passed all bounded probes. Every open-ended prompt is sent at every
temperature as a stream, which is canceled when it loops. Both probes of prose use the same answers: the second takes
them from the trace.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence

from pydantic import Field

from halfbyte.degeneracy.defects import letters_by_script, script_drift
from halfbyte.degeneracy.loop_test import open_prompts
from halfbyte.probe.answers import Answer
from halfbyte.probe.checks import same_text
from halfbyte.probe.client import Ask, Client
from halfbyte.probe.judging import (
    Rate,
    cancel_on_loop,
    defects,
    each,
    judge_rate,
    judged,
    loops,
    no_answers,
    rate_of,
    whole,
)
from halfbyte.probe.probe import (
    Cost,
    Excerpt,
    Finding,
    Probe,
    Setting,
    Verdict,
)
from halfbyte.probe.profiles import Questions, lacks_section

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


Bad = Callable[[Answer], list[Excerpt]]


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


def _rate(answers: Sequence[Answer], each: int, bad: Bad) -> tuple[Rate, list[Excerpt]]:
    """Count bad answers by prompt; answers with errors are left out, also of the interval."""
    faults = [None if answer.error else bad(answer) for answer in answers]
    prompts = [faults[at : at + each] for at in range(0, len(faults), each)]
    flags = [[bool(shown) for shown in prompt if shown is not None] for prompt in prompts]
    return rate_of(flags), [fault for shown in faults for fault in shown or ()]


def _unfinished(answer: Answer) -> list[Excerpt]:
    """Return a text that the token limit cut; loops are counted by the other probe."""
    if answer.finish_reason != "length" or loops(answer):
        return []
    text = answer.text or answer.reasoning or ""
    return [Excerpt(text, "does not end", max(0, len(text) - 40), len(text), answer.id)]


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
    by_temperature = {
        f"{value:g}": _rate(answers[at::each], 1, bad)[0].bad_count for at, value in enumerate(prose.temperatures)
    }
    return Finding(
        Verdict.FAILED if judged.too_high else Verdict.PASSED,
        judged.measured,
        judged.threshold,
        {
            **judged.numbers,
            "by_temperature": by_temperature,
            "errors": sum(answer.error is not None for answer in answers),
        },
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


# Copy fidelity: names, codes, scripts and look-alike letters, compared character by character.
#
# The texts include the keep192 card's own failures: Warsaw became Warszaw, Check_Spark_192 became Check_SSpark_192,
# and the Arabic yeh became the Persian one. Readers cannot see the last one, so the report names the first wrong
# character.

COPYING_NAME = "copying"
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


def _copying(setting: Setting) -> Finding:
    section, client = setting.profile.need(COPYING_NAME, Copying), setting.client
    texts = section.chosen(setting.seed)
    prompts = [section.ask[at % len(section.ask)].replace("{text}", text) for at, text in enumerate(texts)]
    answers = client.ask_all([client.chat_ask(prompt, max_tokens=section.max_tokens) for prompt in prompts])

    def wrong(number: int, answer: Answer) -> list[Excerpt]:
        return same_text(answer, texts[number])

    needed = len(texts) - section.allowed
    return judged(answers, each(answers, wrong), what="copied", needed=needed, cause="copying")


def _copying_cost(setting: Setting) -> Cost:
    section = setting.profile.section(COPYING_NAME, Copying)
    if section is None:
        return Cost(0, 0, 0)
    texts = section.chosen(setting.seed)
    prompt = int(sum(30 + len(text) * _TOKENS_PER_CHARACTER for text in texts))
    return Cost(len(texts), prompt, len(texts) * 32, setting.profile.concurrency)


COPYING = Probe(
    COPYING_NAME, "prose", "copy fidelity",
    "names and codes with one changed letter pass every benchmark but break programs", True,
    _copying, _copying_cost, lacks_section(COPYING_NAME),
)  # fmt: skip


# Garbage: runs of token 0 ("!!!!"), empty answers that count tokens, texts without words, another language.
#
# NaN logits make the first token of the vocabulary the top-1 token. Whether that happens depends on the prompt length
# and on the rest of the batch, so prompts of several lengths are sent concurrently.

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


def wrong_text(answer: Answer) -> list[Excerpt]:
    """Return faults that no model with finite logits has."""
    for text in (answer.text, answer.reasoning or ""):
        match = _RUN.search(text)
        if match:
            return [Excerpt(text, "repeated-character: a run of token 0", *match.span(), answer.id)]
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

    def wrong(number: int, answer: Answer) -> list[Excerpt]:
        if not answer.text.strip():
            return [whole(answer, "no content")]
        drift = script_drift(answer.text, prompts[number][0])
        return [Excerpt(answer.text, f"{it.kind}: {it.detail}", it.start, it.end, answer.id) for it in drift]

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
