"""What the server probes ask: questions whose answers are long enough to differ, and a way to make probes of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pydantic import Field

from halfbyte.validate.probe.kinds import Cost, Finding, Probe, Setting
from halfbyte.validate.probe.profiles import Questions

SECTION = "server"


class ServerQuestions(Questions):
    """Any prompts will do, as long as their greedy answers are stable: no tie between two first words."""

    prompts: list[str] = Field(min_length=4)  # answers of some dozen tokens
    unicode_prompt: str  # its answer has characters of several bytes
    endless: str  # its answer is long, to be cut and cancelled
    endless_options: dict[str, Any] = Field(default_factory=dict[str, Any])
    max_tokens: int = 96


def questions(setting: Setting) -> ServerQuestions:
    """Return the profile's questions for servers."""
    return setting.profile.need(SECTION, ServerQuestions)


def server_probe(
    name: str,
    title: str,
    reason: str,
    run: Callable[[Setting], Finding],
    requests: int = 1,
    *,
    gate: bool = True,
) -> Probe:
    """Return a probe of short requests."""

    def cost(setting: Setting) -> Cost:
        tokens = questions(setting).max_tokens
        return Cost(requests, requests * 64, requests * tokens)

    def lacks(setting: Setting) -> str | None:
        return (
            None
            if SECTION in setting.profile.questions
            else f"the profile {setting.profile.name} has no such questions"
        )

    return Probe(name, "server", title, reason, gate, run, cost, lacks)
