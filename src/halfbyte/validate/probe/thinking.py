"""Thinking on and off: the thought is closed, kept apart from the answer, and does not loop; without it there is none.

The keep192 card's model never closes its thought: it fills the context and returns empty content.
"""

from __future__ import annotations

import re
from typing import Any

from pydantic import Field

from halfbyte.validate.probe.answers import Answer
from halfbyte.validate.probe.card.items import lacks_section
from halfbyte.validate.probe.judging import each, judged
from halfbyte.validate.probe.kinds import Cost, Finding, Probe, Setting, Shown, skipped
from halfbyte.validate.probe.marks import whole
from halfbyte.validate.probe.profiles import Questions
from halfbyte.validate.probe.watching import loops, until_it_loops

SECTION = "thinking"
_MARKUP = re.compile(r"</?think>|◁/?think▷")
NO_THOUGHT = "no reasoning beside the content"
_PROMPT_TOKENS = 80


class Thinking(Questions):
    """Questions that want a thought and have a short answer."""

    prompts: list[str] = Field(min_length=1)
    max_tokens: int = Field(gt=0)
    must_think: bool = True  # False for a family some of whose models do not
    needed: int = Field(gt=0)  # of the thoughts; answers without thoughts must all be sound


def _leaks(answer: Answer) -> list[Shown]:
    return [
        Shown(text, f"{match.group()} in the {name}", match.start(), match.end(), answer.id)
        for name, text in (("content", answer.text), ("reasoning", answer.reasoning or ""))
        for match in _MARKUP.finditer(text)
    ]


def wrong_thought(answer: Answer) -> list[Shown]:
    """Return what is wrong with an answer that was to think."""
    found = [*loops(answer, "any"), *_leaks(answer)]
    if found:
        return found
    reasoning = (answer.reasoning or "").strip()
    if reasoning and not answer.text.strip():
        end = len(reasoning)
        what = "the thought does not end, and there is no content"
        if answer.finish_reason != "length":
            what = "the thought ends, and there is no content"
        return [Shown(reasoning, what, max(0, end - 40), end, answer.id)]
    if not reasoning:
        return [whole(answer, NO_THOUGHT if answer.text else "neither reasoning nor content")]
    return []


def wrong_without_thought(answer: Answer) -> list[Shown]:
    """Return what is wrong with an answer that was not to think."""
    found = [*loops(answer, "any"), *_leaks(answer)]
    if found:
        return found
    if (answer.reasoning or "").strip():
        return [whole(answer, "a thought, though thinking is off")]
    return [] if answer.text.strip() else [whole(answer, "no content")]


def _ask(setting: Setting, options: dict[str, Any]) -> list[Answer]:
    section, client = setting.profile.need(SECTION, Thinking), setting.client
    return client.ask_all(
        [
            client.chat_ask(
                prompt, max_tokens=section.max_tokens, stream=True, watch=until_it_loops("any"), **options
            )
            for prompt in section.prompts
        ]
    )  # fmt: skip


def _on(setting: Setting) -> Finding:
    answers = _ask(setting, setting.client.thinking_options)
    wrongs = each(answers, lambda _, answer: wrong_thought(answer))
    section = setting.profile.need(SECTION, Thinking)
    if not section.must_think and all(_plain(answer, wrong) for answer, wrong in zip(answers, wrongs, strict=True)):
        return skipped("no answer has a thought: a model that does not think, or a server that leaves it out")
    return judged(answers, wrongs, what="think, end and answer", needed=section.needed, cause="thinking-open")


def _plain(answer: Answer, wrong: list[Shown]) -> bool:
    """Whether an answer is sound but for the thought that it does not have."""
    return not answer.error and [one.what for one in wrong] == [NO_THOUGHT]


def _off(setting: Setting) -> Finding:
    answers = _ask(setting, {})
    wrongs = each(answers, lambda _, answer: wrong_without_thought(answer))
    return judged(answers, wrongs, what="answer without a thought", cause="thinking-mixed")


def _cost(setting: Setting) -> Cost:
    section = setting.profile.section(SECTION, Thinking)
    count = len(section.prompts) if section else 0
    return Cost(count, count * _PROMPT_TOKENS, count * (section.max_tokens if section else 0))


THINKING = (
    Probe(
        "thinking-on", "prose", "thinking on",
        "a thought that never closes fills the context, and the content stays empty", True,
        _on, _cost, lacks_section(SECTION),
    ),
    Probe(
        "thinking-off", "prose", "thinking off",
        "a wrong reasoning parser or template puts the thought into the answer, or the answer into the thought", True,
        _off, _cost, lacks_section(SECTION),
    ),
)  # fmt: skip
