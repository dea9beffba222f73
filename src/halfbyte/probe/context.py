"""Build prompts of a given length in tokens, up to the served limit.

A haystack is a list of distinct entries, and a question asks for one of them. If the server has /tokenize, the length
is exact: entries first, then single words. Otherwise two short requests measure the cost of an entry, and the prompt is
slightly shorter than the target. The `usage` of the answer has the actual length.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from halfbyte.endpoint.client import EndpointError
from halfbyte.errors import UsageError
from halfbyte.probe.client import Client
from halfbyte.probe.profiles import Profile, Questions

SMALLEST = 256  # tokens: too few for any question below it
FULL = 262_144  # context of the card; lengths are shares of it
_FEW, _MORE = 8, 40  # entries of two prompts that measure the cost of one
_MANY, _VERY_MANY = 1000, 1500  # the same in long lists, where entries have numbers
_LONG = 30_000  # upper bound of the tokens in those
_ROUNDS = 8
_SAFE = 0.98  # of the target length, if the server does not count tokens
_PADDING = ("sun", "moon", "star", "rain", "wind", "tree", "road", "wall", "door", "lamp", "book", "ship", "fish")

Turns = Sequence[Mapping[str, Any]]
Build = Callable[[int, str], Turns]  # number of entries, padding words -> the messages of a chat


class Haystack(Questions):
    """Words of the entries, and the prompt around them."""

    instruction: str
    first: list[str]
    second: list[str]
    question: str  # contains {key}


@dataclass(frozen=True, slots=True)
class Hidden:
    """A needle in a haystack."""

    key: str
    value: str


@dataclass(frozen=True, slots=True)
class Fitted:
    """A prompt and its length; `exact` if the server counted it."""

    turns: Turns
    tokens: int
    exact: bool
    entries: int
    padding: str = ""


def entries(words: Haystack, count: int, seed: int) -> list[Hidden]:
    """Return entries with distinct keys; keys get numbers once all pairs of words are used."""
    rng = random.Random(seed)
    pairs = [f"{first} {second}" for first in words.first for second in words.second]
    rng.shuffle(pairs)
    hidden: list[Hidden] = []
    for number in range(count):
        lap, at = divmod(number, len(pairs))
        hidden.append(Hidden(pairs[at] + (f" {lap + 1}" if lap else ""), str(rng.randrange(1000, 10_000))))
    return hidden


def listed(hidden: Sequence[Hidden], padding: str = "") -> str:
    """Format entries for a prompt."""
    return "\n".join(f"- {entry.key}: {entry.value}" for entry in hidden) + (f"\n{padding}" if padding else "")


class Lengths:
    """Fit prompts to lengths on one server."""

    def __init__(self, client: Client, profile: Profile, served: int | None, requested: str | int = "auto") -> None:
        self._client = client
        self.words = profile.need("haystack", Haystack)
        self.limit = _limit(served, requested)
        self._counts = True  # until /tokenize fails
        self._estimate: tuple[float, float] | None = None

    def at(self, share: float) -> int:
        """Return a share of the limit in tokens."""
        return round(self.limit * share)

    def count(self, turns: Turns) -> int | None:
        """Return the number of prompt tokens of a chat, or None if the server does not count them."""
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
        """Return the longest prompt of at most that many tokens."""
        base, each = self._costs(build)
        number = max(0, int((tokens - base) / each))
        if not self._counts:
            number = int(number * _SAFE)
            return Fitted(build(number, ""), int(base + number * each), False, number)
        number = self._entries(tokens, number, each, build)
        return self._padded(tokens, number, build)

    def _costs(self, build: Build) -> tuple[float, float]:
        """Return the token cost of a prompt without entries, and of one entry."""
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
        counts = [self._client.ask(ask).prompt_tokens for ask in asks]
        if counts[0] is None or counts[1] is None or counts[1] <= counts[0]:
            raise EndpointError("neither /tokenize nor usage reports the length of a prompt", again=False)
        each = (counts[1] - counts[0]) / (numbers[1] - numbers[0])
        return counts[0] - numbers[0] * each, each

    def _entries(self, tokens: int, number: int, each: float, build: Build) -> int:
        for _ in range(_ROUNDS):
            room = tokens - (self.count(build(number, "")) or 0)
            if 0 <= room < each:
                break
            number = max(0, number + (int(room // each) or -1))
        return number

    def _padded(self, tokens: int, number: int, build: Build) -> Fitted:
        """Add words until the length is exact; remove entries if there are too many."""
        best = self._counted(number, 0, build)
        while best.tokens > tokens and number:
            number -= 1
            best = self._counted(number, 0, build)
        words = 0
        for _ in range(_ROUNDS):
            if best.tokens == tokens:
                break
            words += max(1, (tokens - best.tokens) // 2 if words else tokens - best.tokens)
            candidate = self._counted(number, words, build)
            while candidate.tokens > tokens and words > 1:
                words -= 1
                candidate = self._counted(number, words, build)
            if not best.tokens < candidate.tokens <= tokens:
                break
            best = candidate
        return best

    def _counted(self, number: int, words: int, build: Build) -> Fitted:
        padding = " ".join(_PADDING[at % len(_PADDING)] for at in range(words))
        turns = build(number, padding)
        return Fitted(turns, self.count(turns) or 0, True, number, padding)


def _limit(served: int | None, requested: str | int) -> int:
    if requested == "auto":
        if served is None:
            what = "the server does not report its context length"
            raise UsageError(what, where="/v1/models", fix="pass --context N")
        limit = served
    else:
        try:
            limit = int(requested)
        except ValueError:
            what = f"'{requested}' is not a valid context length"
            raise UsageError(what, where="--context", fix="pass auto or a number of tokens") from None
        if served is not None and limit > served:
            what = f"a context of {limit:,} tokens exceeds the served {served:,}"
            raise UsageError(what, where="--context", fix="pass auto or a smaller number")
    if limit < SMALLEST:
        what = f"a context of {limit:,} tokens is too short"
        raise UsageError(what, where="--context", fix=f"use at least {SMALLEST} tokens")
    return limit
