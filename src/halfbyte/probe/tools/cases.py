"""Requests with tools, from the profile or from `--tool-calls FILE`."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from pydantic import Field

from halfbyte.probe.answers import Answer
from halfbyte.probe.client import Ask, Client
from halfbyte.probe.kinds import Cost, Setting
from halfbyte.probe.profiles import Questions

SECTION = "tools"
_TOKENS_PER_CHARACTER = 0.4


class Case(Questions):
    """One request. `calls` are the expected calls in order, or None if unknown."""

    messages: list[dict[str, Any]] = Field(min_length=1)
    tools: list[dict[str, Any]] = Field(min_length=1)
    calls: list[dict[str, Any]] | None = None
    triggered: bool | None = None  # recorded decision of a reference
    options: dict[str, Any] = Field(default_factory=dict[str, Any])

    @property
    def size(self) -> int:
        """Return the number of characters of the request."""
        return len(str(self.messages)) + len(str(self.tools))

    @property
    def should_call(self) -> bool | None:
        """Whether a tool call is expected, if known."""
        return self.triggered if self.calls is None else bool(self.calls)


class ToolQuestions(Questions):
    """Requests and limits of the profile."""

    cases: list[Case] = Field(min_length=1)
    take: int | None = None
    streamed: int = Field(gt=0)  # number of requests that are also streamed
    max_tokens: int = Field(gt=0)
    id_form: str | None = None  # such as functions.{name}:{index}
    least_valid: float = Field(gt=0, le=1)  # of all calls
    least_parallel: float = Field(gt=0, le=1)  # of the requests that expect several calls
    least_equal: float = Field(gt=0, le=1)  # of streams
    least_f1: float = Field(gt=0, le=1)  # without a live reference
    f1_margin: float = Field(ge=0, lt=1)  # below the self-agreement of the reference


def section(setting: Setting) -> ToolQuestions:
    """Return the profile's section."""
    return setting.profile.need(SECTION, ToolQuestions)


def chosen(setting: Setting) -> list[Case]:
    """Return the requests of a run, the same for all probes: the whole file, or a sample of the profile by the seed."""
    if setting.tool_cases is not None:
        return list(setting.tool_cases)
    questions = section(setting)
    if questions.take is None or questions.take >= len(questions.cases):
        return list(questions.cases)
    return random.Random(setting.seed).sample(questions.cases, questions.take)


def streamed(setting: Setting) -> list[Case]:
    """Return the requests that are also streamed: those that expect a call first."""
    cases = sorted(chosen(setting), key=lambda case: not case.should_call)
    return cases[: section(setting).streamed]


def request(client: Client, case: Case, max_tokens: int, *, stream: bool = False, repetition: int = 0) -> Ask:
    """Build the request of a case."""
    chat: dict[str, Any] = {"tools": case.tools, "max_tokens": max_tokens, "tool_choice": "auto"}
    ask = client.chat_ask(case.messages, repetition=repetition, **chat)
    options = {**case.options, **({"stream": True} if stream else {})}  # with any names
    return replace(ask, body=client.body_of(ask.body, options))


def ask_plain(setting: Setting, client: Client, cases: Sequence[Case], repetition: int = 0) -> list[Answer]:
    """Send the cases; a second probe reads the answers from the trace."""
    max_tokens = section(setting).max_tokens
    return client.ask_all([request(client, case, max_tokens, repetition=repetition) for case in cases])


def ask_streamed(setting: Setting, cases: Sequence[Case]) -> list[Answer]:
    """Send the cases as streams."""
    client, max_tokens = setting.client, section(setting).max_tokens
    return client.ask_all([request(client, case, max_tokens, stream=True) for case in cases])


def cost(
    setting: Setting, cases: Sequence[Case], *, streams: Sequence[Case] = (), reference_repetitions: int = 0
) -> Cost:
    """Return the cost of the unanswered requests: plain, streamed, and to the reference."""
    client, reference, max_tokens = setting.client, setting.reference, section(setting).max_tokens
    asks = [(case, client, request(client, case, max_tokens)) for case in cases]
    asks += [(case, client, request(client, case, max_tokens, stream=True)) for case in streams]
    if reference is not None:
        asks += [
            (case, reference, request(reference, case, max_tokens, repetition=repetition))
            for repetition in range(reference_repetitions)
            for case in cases
        ]
    sizes = [case.size for case, target, ask in asks if target.unanswered([ask])]
    return Cost(
        len(sizes), int(sum(sizes) * _TOKENS_PER_CHARACTER), len(sizes) * max_tokens // 2, setting.profile.concurrency
    )
