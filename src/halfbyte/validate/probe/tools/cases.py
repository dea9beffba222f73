"""Requests with tools: those of the profile, or those of `--tool-calls FILE`."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from pydantic import Field

from halfbyte.validate.probe.answers import Answer
from halfbyte.validate.probe.client import Ask, Client
from halfbyte.validate.probe.kinds import Cost, Setting
from halfbyte.validate.probe.profiles import Questions

SECTION = "tools"
_TOKENS_PER_CHARACTER = 0.4


class Case(Questions):
    """One request. `calls` are the right ones, in order; None where nobody has said what is right."""

    messages: list[dict[str, Any]] = Field(min_length=1)
    tools: list[dict[str, Any]] = Field(min_length=1)
    calls: list[dict[str, Any]] | None = None
    triggered: bool | None = None  # what a reference did that is not there any more: its recorded answer
    options: dict[str, Any] = Field(default_factory=dict[str, Any])

    @property
    def size(self) -> int:
        """Return the characters of the request."""
        return len(str(self.messages)) + len(str(self.tools))

    @property
    def should_call(self) -> bool | None:
        """Whether a tool is to be called, where that is known."""
        return self.triggered if self.calls is None else bool(self.calls)


class ToolQuestions(Questions):
    """The profile's requests and limits."""

    cases: list[Case] = Field(min_length=1)
    take: int | None = None
    streamed: int = Field(gt=0)  # so many of them are asked as streams too
    max_tokens: int = Field(gt=0)
    id_form: str | None = None  # as in functions.{name}:{index}
    least_valid: float = Field(gt=0, le=1)  # of all calls
    least_parallel: float = Field(gt=0, le=1)  # of the requests that want several calls
    least_equal: float = Field(gt=0, le=1)  # of streams
    least_f1: float = Field(gt=0, le=1)  # where no live reference says what it would agree with itself
    f1_margin: float = Field(ge=0, lt=1)  # below the reference's agreement with itself


def section(setting: Setting) -> ToolQuestions:
    """Return the profile's section."""
    return setting.profile.need(SECTION, ToolQuestions)


def chosen(setting: Setting) -> list[Case]:
    """Return the requests of a run: all of the file's, or the profile's by the seed, the same for all probes."""
    if setting.tool_cases is not None:
        return list(setting.tool_cases)
    found = section(setting)
    if found.take is None or found.take >= len(found.cases):
        return list(found.cases)
    return random.Random(setting.seed).sample(found.cases, found.take)


def streamed(setting: Setting) -> list[Case]:
    """Return those that are asked as streams too: with a right answer of a call first."""
    cases = sorted(chosen(setting), key=lambda case: not case.should_call)
    return cases[: section(setting).streamed]


def request(client: Client, case: Case, most: int, *, stream: bool = False, repetition: int = 0) -> Ask:
    """Return the request of a case."""
    ask = client.chat_ask(case.messages, tools=case.tools, repetition=repetition, max_tokens=most, tool_choice="auto")
    options = {**case.options, **({"stream": True} if stream else {})}  # of the request, whatever their names are
    return replace(ask, body=client.body_of(ask.body, options))


def ask_plain(setting: Setting, client: Client, cases: Sequence[Case], repetition: int = 0) -> list[Answer]:
    """Ask the cases; a second probe finds the answers in the trace."""
    most = section(setting).max_tokens
    return client.ask_all([request(client, case, most, repetition=repetition) for case in cases])


def ask_streamed(setting: Setting, cases: Sequence[Case]) -> list[Answer]:
    """Ask the cases as streams."""
    client, most = setting.client, section(setting).max_tokens
    return client.ask_all([request(client, case, most, stream=True) for case in cases])


def cost(setting: Setting, *, streams: bool = False, sides: int = 1) -> Cost:
    """Return what asking costs, once for all cases and side, and once more for the streams."""
    if setting.profile.section(SECTION, ToolQuestions) is None:
        return Cost(0, 0, 0)
    cases = chosen(setting) * sides + (streamed(setting) if streams else [])
    most, size = section(setting).max_tokens, sum(case.size for case in cases)
    return Cost(len(cases), int(size * _TOKENS_PER_CHARACTER), len(cases) * most // 2)
