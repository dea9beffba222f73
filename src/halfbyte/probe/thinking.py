"""Thinking on and off: a thought must end, stay separate from the answer and not loop; with thinking off there is none.

The keep192 card's model never ends its thought: it fills the context and returns empty content.
"""

from __future__ import annotations

import re
from typing import Any

from pydantic import Field

from halfbyte.probe.answers import Answer
from halfbyte.probe.judging import cancel_on_loop, each, judged, loops, whole
from halfbyte.probe.probe import (
    Cost,
    Excerpt,
    Finding,
    Probe,
    Setting,
    skipped,
)
from halfbyte.probe.profiles import Questions, lacks_section

SECTION = "thinking"
_MARKUP = re.compile(r"</?think>|◁/?think▷")
NO_THOUGHT = "content without reasoning"
_PROMPT_TOKENS = 80


class Thinking(Questions):
    """Questions that require thinking and have a short answer."""

    prompts: list[str] = Field(min_length=1)
    max_tokens: int = Field(gt=0)
    must_think: bool = True  # False for a family with models that do not think
    needed: int = Field(gt=0)  # of the answers with thinking; without thinking, all must be right


def _leaks(answer: Answer) -> list[Excerpt]:
    return [
        Excerpt(text, f"{match.group()} in the {name}", match.start(), match.end(), answer.id)
        for name, text in (("content", answer.text), ("reasoning", answer.reasoning or ""))
        for match in _MARKUP.finditer(text)
    ]


def thinking_faults(answer: Answer) -> list[Excerpt]:
    """Return the faults of an answer with thinking on."""
    faults = [*loops(answer, "any"), *_leaks(answer)]
    if faults:
        return faults
    reasoning = (answer.reasoning or "").strip()
    if reasoning and not answer.text.strip():
        end = len(reasoning)
        what = "the thought does not end, and the content is empty"
        if answer.finish_reason != "length":
            what = "the thought ends, but the content is empty"
        return [Excerpt(reasoning, what, max(0, end - 40), end, answer.id)]
    if not reasoning:
        return [whole(answer, NO_THOUGHT if answer.text else "neither reasoning nor content")]
    return []


def faults_without_thinking(answer: Answer) -> list[Excerpt]:
    """Return the faults of an answer with thinking off."""
    faults = [*loops(answer, "any"), *_leaks(answer)]
    if faults:
        return faults
    if (answer.reasoning or "").strip():
        return [whole(answer, "a thought although thinking is off")]
    return [] if answer.text.strip() else [whole(answer, "no content")]


def _ask(setting: Setting, options: dict[str, Any]) -> list[Answer]:
    section, client = setting.profile.need(SECTION, Thinking), setting.client
    return client.ask_all(
        [
            client.chat_ask(
                prompt, max_tokens=section.max_tokens, stream=True, watch=cancel_on_loop("any"), **options
            )
            for prompt in section.prompts
        ]
    )  # fmt: skip


def _on(setting: Setting) -> Finding:
    answers = _ask(setting, setting.client.thinking_options)
    wrongs = each(answers, lambda _, answer: thinking_faults(answer))
    section = setting.profile.need(SECTION, Thinking)
    if not section.must_think and all(_plain(answer, wrong) for answer, wrong in zip(answers, wrongs, strict=True)):
        return skipped("no answer has a thought: the model does not think, or the server drops thoughts")
    return judged(answers, wrongs, what="answered after a thought", needed=section.needed, cause="thinking-open")


def _plain(answer: Answer, wrong: list[Excerpt]) -> bool:
    """Whether the missing thought is the only fault of an answer."""
    return not answer.error and [fault.problem for fault in wrong] == [NO_THOUGHT]


def _off(setting: Setting) -> Finding:
    answers = _ask(setting, {})
    wrongs = each(answers, lambda _, answer: faults_without_thinking(answer))
    return judged(answers, wrongs, what="answered without a thought", cause="thinking-mixed")


def _cost(setting: Setting) -> Cost:
    section = setting.profile.section(SECTION, Thinking)
    count = len(section.prompts) if section else 0
    output = count * (section.max_tokens if section else 0)
    return Cost(count, count * _PROMPT_TOKENS, output, setting.profile.concurrency)


THINKING = (
    Probe(
        "thinking-on", "prose", "thinking on",
        "a thought that never ends fills the context and leaves the content empty", True,
        _on, _cost, lacks_section(SECTION),
    ),
    Probe(
        "thinking-off", "prose", "thinking off",
        "a wrong reasoning parser or chat template mixes the thought with the answer", True,
        _off, _cost, lacks_section(SECTION),
    ),
)  # fmt: skip
