"""Profiles: the questions of the probes as data. `kimi` is for the real model, `mini` for kimi-mini.

Each probe validates its section with its own pydantic model, so an invalid file is rejected before any request.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from functools import cache
from importlib.resources import files
from typing import Any, Generic, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, Field

from halfbyte.errors import UsageError
from halfbyte.probe.probe import Cost, Setting
from halfbyte.ui.suggest import did_you_mean

_FOLDER = files("halfbyte.probe") / "data" / "profiles"
Section = TypeVar("Section", bound="Questions")


class Questions(BaseModel):
    """Base of every section; unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Profile(Questions):
    """A profile, selected by `--profile`."""

    name: str
    description: str
    chat_options: dict[str, Any] = Field(default_factory=dict[str, Any])  # of every chat, unless a probe overrides them
    thinking_options: dict[str, Any] = Field(default_factory=dict[str, Any])  # of a chat with thinking on
    concurrency: int = Field(gt=0)
    timeout_s: float = Field(gt=0)  # of one request
    questions: dict[str, Any]

    def section(self, name: str, kind: type[Section]) -> Section | None:
        """Return the section of that name, or None if this profile lacks it."""
        data = self.questions.get(name)
        return None if data is None else kind.model_validate(data)

    def need(self, name: str, kind: type[Section]) -> Section:
        """Return the section of that name; `lacks_section` has checked that it exists."""
        section = self.section(name, kind)
        assert section is not None, name
        return section


def profile_names() -> list[str]:
    """Return the names of all profiles."""
    return sorted(path.name.removesuffix(".yaml") for path in _FOLDER.iterdir() if path.name.endswith(".yaml"))


@cache
def load_profile(name: str) -> Profile:
    """Load a profile."""
    names = profile_names()
    if name not in names:
        raise UsageError(f"unknown profile '{name}'", where="--profile", fix=did_you_mean(name, names))
    data = yaml.safe_load((_FOLDER / f"{name}.yaml").read_text(encoding="utf-8"))
    return Profile.model_validate(data)


# Questions with known answers, as most probes of the card have them, and their selection by seed.

TOKENS_PER_CHARACTER = 0.4  # conservative estimate for prompts without a token count


class Item(Questions):
    """One question and its expected answer."""

    ask: str
    answer: Any = None
    options: dict[str, Any] = Field(default_factory=dict[str, Any])  # of the request


ItemKind = TypeVar("ItemKind", bound=Item)


class Items(Questions, Generic[ItemKind]):
    """The questions of a probe."""

    items: list[ItemKind] = Field(min_length=1)
    take: int | None = None  # number of questions, chosen by the seed; default: all
    needed: int | None = None  # number of right answers; default: all
    max_tokens: int = 256
    options: Mapping[str, Any] = Field(default_factory=dict[str, Any])

    def chosen(self, seed: int) -> list[ItemKind]:
        """Return the questions of a run with this seed."""
        if self.take is None or self.take >= len(self.items):
            return list(self.items)
        return random.Random(seed).sample(self.items, self.take)


def lacks_section(name: str) -> Callable[[Setting], str | None]:
    """Return a check that a profile has the questions of that name."""

    def lacks(setting: Setting) -> str | None:
        return (
            None if name in setting.profile.questions else f"the profile {setting.profile.name} has no such questions"
        )

    return lacks


def costs_items(name: str, kind: type[Items[Any]] = Items[Item]) -> Callable[[Setting], Cost]:
    """Return a function for the cost of the items of that name."""

    def cost(setting: Setting) -> Cost:
        items = setting.profile.section(name, kind)
        if items is None:
            return Cost(0, 0, 0)
        chosen = items.chosen(setting.seed)
        prompt = sum(len(item.ask) for item in chosen) * TOKENS_PER_CHARACTER
        return Cost(len(chosen), int(prompt), len(chosen) * items.max_tokens, setting.profile.concurrency)

    return cost
