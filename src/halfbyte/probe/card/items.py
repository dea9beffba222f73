"""Questions with known answers, as most probes of the card have them, and their selection by seed."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

from pydantic import Field

from halfbyte.probe.kinds import Cost, Setting
from halfbyte.probe.profiles import Questions

_TOKENS_PER_CHARACTER = 0.4  # conservative estimate for prompts without a token count


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
        prompt = sum(len(item.ask) for item in chosen) * _TOKENS_PER_CHARACTER
        return Cost(len(chosen), int(prompt), len(chosen) * items.max_tokens, setting.profile.concurrency)

    return cost
