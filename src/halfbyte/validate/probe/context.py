"""Prompts of a wanted length in tokens, up to the served limit.

A haystack is a list of entries, unlike each other; one of them is asked for. Where the server has /tokenize the length
is exact: entries first, then single words. Elsewhere two short requests tell what an entry costs, and the length comes
out a little below what is wanted; the answer's `usage` says what it was.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from halfbyte.errors import UsageError
from halfbyte.validate.endpoint import EndpointError
from halfbyte.validate.probe.client import Client
from halfbyte.validate.probe.profiles import Profile, Questions

SMALLEST = 256  # tokens: below it nothing can be asked
FULL = 262_144  # the limit of the card; lengths are shares of it
_FEW, _MORE = 8, 40  # entries: two prompts that tell what one costs
_MANY, _VERY_MANY = 1000, 1500  # in long lists, where entries have numbers
_LONG = 30_000  # tokens that those need at most
_ROUNDS = 8
_SAFE = 0.98  # of the wanted length, where nobody counts for us
_PADDING = ("sun", "moon", "star", "rain", "wind", "tree", "road", "wall", "door", "lamp", "book", "ship", "fish")

Turns = Sequence[Mapping[str, Any]]
Build = Callable[[int, str], Turns]  # entries, words after them -> the turns of a chat


class Haystack(Questions):
    """What entries are made of."""

    instruction: str
    first: list[str]
    second: list[str]
    question: str  # has {key}
    several: str = "{questions}"  # for more than one question at once


@dataclass(frozen=True, slots=True)
class Hidden:
    """A haystack's needle."""

    key: str
    value: str


@dataclass(frozen=True, slots=True)
class Fitted:
    """A prompt and its length; not counted by the server where `exact` is false."""

    turns: Turns
    tokens: int
    exact: bool
    entries: int
    padding: str = ""


def entries(words: Haystack, count: int, seed: int) -> list[Hidden]:
    """Return entries with different keys; more than there are pairs of words get numbers."""
    rng = random.Random(seed)
    pairs = [f"{one} {two}" for one in words.first for two in words.second]
    rng.shuffle(pairs)
    found: list[Hidden] = []
    for number in range(count):
        lap, place = divmod(number, len(pairs))
        found.append(Hidden(pairs[place] + (f" {lap + 1}" if lap else ""), str(rng.randrange(1000, 10_000))))
    return found


def listed(hidden: Sequence[Hidden], padding: str = "") -> str:
    """Return entries as the text of a prompt."""
    return "\n".join(f"- {one.key}: {one.value}" for one in hidden) + (f"\n{padding}" if padding else "")


class Lengths:
    """Fits prompts to lengths on one server."""

    def __init__(self, client: Client, profile: Profile, served: int | None, wanted: str | int = "auto") -> None:
        self._client = client
        self.words = profile.need("haystack", Haystack)
        self.limit = _limit(served, wanted)
        self._counts = True  # until the server says that it does not
        self._estimate: tuple[float, float] | None = None

    def at(self, share: float) -> int:
        """Return a share of the limit in tokens."""
        return round(self.limit * share)

    def count(self, turns: Turns) -> int | None:
        """Return how many tokens a chat's prompt has, if the server counts."""
        if not self._counts:
            return None
        kwargs = self._client.chat_options.get("chat_template_kwargs")
        body: dict[str, Any] = {"model": self._client.model, "messages": list(turns), "add_generation_prompt": True}
        body |= {"chat_template_kwargs": kwargs} if kwargs else {}
        try:
            return int(self._client.endpoint.post("/tokenize", body, 120)["count"])
        except (EndpointError, LookupError, TypeError, ValueError):
            self._counts = False
            return None

    def fit(self, tokens: int, build: Build) -> Fitted:
        """Return the longest prompt of not more than that many tokens."""
        base, each = self._costs(build)
        number = max(0, int((tokens - base) / each))
        if not self._counts:
            number = int(number * _SAFE)
            return Fitted(build(number, ""), int(base + number * each), False, number)
        number = self._entries(tokens, number, each, build)
        return self._padded(tokens, number, build)

    def _costs(self, build: Build) -> tuple[float, float]:
        """Return what a prompt without entries costs, and what an entry does."""
        few, more = self.count(build(_FEW, "")), self.count(build(_MORE, ""))
        if few is None or more is None:
            if self._estimate is None:
                self._estimate = self._ask_costs(build)
            return self._estimate
        each = (more - few) / (_MORE - _FEW)
        return few - _FEW * each, each

    def _ask_costs(self, build: Build) -> tuple[float, float]:
        numbers = (_MANY, _VERY_MANY) if self.limit > _LONG else (_FEW, _MORE)
        asks = [self._client.chat_ask(build(number, ""), max_tokens=1) for number in numbers]
        told = [self._client.ask(ask).prompt_tokens for ask in asks]
        if told[0] is None or told[1] is None or told[1] <= told[0]:
            raise EndpointError("neither /tokenize nor usage tells how long a prompt is", again=False)
        each = (told[1] - told[0]) / (numbers[1] - numbers[0])
        return told[0] - numbers[0] * each, each

    def _entries(self, tokens: int, number: int, each: float, build: Build) -> int:
        for _ in range(_ROUNDS):
            room = tokens - (self.count(build(number, "")) or 0)
            if 0 <= room < each:
                break
            number = max(0, number + (int(room // each) or -1))
        return number

    def _padded(self, tokens: int, number: int, build: Build) -> Fitted:
        """Add words until the length is right to the token; take entries away where they are too many."""
        best = self._counted(number, 0, build)
        while best.tokens > tokens and number:
            number -= 1
            best = self._counted(number, 0, build)
        words = 0
        for _ in range(_ROUNDS):
            if best.tokens == tokens:
                break
            words += max(1, (tokens - best.tokens) // 2 if words else tokens - best.tokens)
            found = self._counted(number, words, build)
            while found.tokens > tokens and words > 1:
                words -= 1
                found = self._counted(number, words, build)
            if not best.tokens < found.tokens <= tokens:
                break
            best = found
        return best

    def _counted(self, number: int, words: int, build: Build) -> Fitted:
        padding = " ".join(_PADDING[at % len(_PADDING)] for at in range(words))
        turns = build(number, padding)
        return Fitted(turns, self.count(turns) or 0, True, number, padding)


def _limit(served: int | None, wanted: str | int) -> int:
    if wanted == "auto":
        if served is None:
            what = "the server does not tell how long its context is"
            raise UsageError(what, where="/v1/models", fix="give it with --context N")
        limit = served
    else:
        try:
            limit = int(wanted)
        except ValueError:
            raise UsageError(f"'{wanted}' is no context", where="--context", fix="give auto, or tokens") from None
        if served is not None and limit > served:
            what = f"a context of {limit:,} tokens is more than the {served:,} that are served"
            raise UsageError(what, where="--context", fix="give auto, or less")
    if limit < SMALLEST:
        raise UsageError(f"a context of {limit:,} tokens is too short", where="--context", fix=f"at least {SMALLEST}")
    return limit
