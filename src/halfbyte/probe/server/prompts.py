"""Questions of the server probes, and a constructor for probes of short requests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pydantic import Field

from halfbyte.probe.kinds import Cost, Finding, Probe, Setting
from halfbyte.probe.profiles import Questions

SECTION = "server"
_PROMPT_TOKENS = 64  # of one question, about


class ServerQuestions(Questions):
    """Any prompts with stable greedy answers, without a near tie at the first token."""

    prompts: list[str] = Field(min_length=4)  # answers of a few dozen tokens
    unicode_prompt: str  # its answer has multi-byte characters
    endless: str  # its answer is long, to be cut and canceled
    endless_options: dict[str, Any] = Field(default_factory=dict[str, Any])
    max_tokens: int = 96
    repetitions: int = Field(default=20, ge=2)  # of one prompt


def questions(setting: Setting) -> ServerQuestions:
    """Return the profile's section."""
    return setting.profile.need(SECTION, ServerQuestions)


def server_probe(
    name: str,
    title: str,
    reason: str,
    run: Callable[[Setting], Finding],
    requests: int | Callable[[Setting], int] = 1,
    *,
    repeats: bool = False,
) -> Probe:
    """Return a probe of short requests."""

    def cost(setting: Setting) -> Cost:
        tokens = questions(setting).max_tokens
        count = requests if isinstance(requests, int) else requests(setting)
        return Cost(count, count * _PROMPT_TOKENS, count * tokens)

    def lacks(setting: Setting) -> str | None:
        return (
            None
            if SECTION in setting.profile.questions
            else f"the profile {setting.profile.name} has no such questions"
        )

    return Probe(name, "server", title, reason, True, run, cost, lacks, repeats)
