"""Answers after a long context: open ones must end without loops, strict ones must still be right."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from halfbyte.probe.answers import Answer
from halfbyte.probe.card import checks
from halfbyte.probe.card.contexts import long_turns, percent, rung_seed, tokens_for
from halfbyte.probe.card.items import Item, Items, lacks_section
from halfbyte.probe.context import FULL, Turns
from halfbyte.probe.judging import each, judged
from halfbyte.probe.kinds import (
    Cost,
    Finding,
    Probe,
    Setting,
    Shown,
)

Check = Callable[[Item, Answer], Sequence[Shown]]


class AfterLong(Items[Item]):
    """Questions after a long list; `short_only` for a model that can then only answer questions about the list."""

    short_only: bool = False


def turns_of(setting: Setting, share: float, section: AfterLong, item: Item) -> Turns:
    """Return a question after a list that fills a share of the limit; share 0 is the question alone."""
    if not share:
        return [{"role": "user", "content": item.ask}]
    words, seed = setting.lengths.words, rung_seed(setting, share) + 1

    def build(number: int, padding: str) -> Turns:
        return long_turns(words, number, padding, seed, item.ask)

    return setting.lengths.fit(tokens_for(setting, share, section.max_tokens), build).turns


def _cost(name: str, shares: Sequence[float]) -> Callable[[Setting], Cost]:
    def cost(setting: Setting) -> Cost:
        section = setting.profile.section(name, AfterLong)
        if section is None:
            return Cost(0, 0, 0)
        asks = len(section.chosen(setting.seed))
        chosen = [0.0] if section.short_only else shares
        prompt = sum(tokens_for(setting, share, section.max_tokens) for share in chosen if share)
        return Cost(asks * len(chosen), asks * prompt, asks * len(chosen) * section.max_tokens)

    return cost


def _lacks(name: str) -> Callable[[Setting], str | None]:
    def lacks(setting: Setting) -> str | None:
        section = setting.profile.section(name, AfterLong)
        if section is not None and section.max_tokens > setting.context // 2:
            return f"answers of {section.max_tokens:,} tokens are too long for a context of {setting.context:,}"
        return lacks_section(name)(setting)

    return lacks


def _ask(setting: Setting, name: str, shares: Sequence[float], check: Check, cause: str) -> Finding:
    section = setting.profile.need(name, AfterLong)
    chosen = [0.0] if section.short_only else shares
    asked = [(share, item) for share in chosen for item in section.chosen(setting.seed)]
    client = setting.client
    answers = [
        client.chat(
            turns_of(setting, share, section, item), max_tokens=section.max_tokens, **section.options, **item.options
        )
        for share, item in asked
    ]
    wrongs = each(answers, lambda number, answer: check(asked[number][1], answer))
    lengths = [answer.prompt_tokens for answer in answers]
    longest = max((tokens for tokens in lengths if tokens), default=0)
    generated = [answer.completion_tokens for answer in answers]
    numbers: dict[str, Any] = {"prompt_tokens": lengths, "completion_tokens": generated}
    what = f"right, up to {longest:,} tokens"
    return judged(answers, wrongs, what=what, cause=cause, numbers=numbers, needed=section.needed)


def _healthy(kind: str) -> Check:
    return lambda _, answer: checks.healthy(answer, kind)


def _json(item: Item, answer: Answer) -> list[Shown]:
    return [*checks.healthy(answer, "json"), *checks.same_json(answer, item.answer)]


def _python(item: Item, answer: Answer) -> list[Shown]:
    return [*checks.healthy(answer, "code"), *checks.python(answer, item.answer)]


def _terms(item: Item, answer: Answer) -> list[Shown]:
    return [*checks.healthy(answer), *checks.has_all(answer, list(item.answer or []))]


def _probe(
    name: str, title: str, reason: str, check: Check, *, thousands: int | None = None, shares: Sequence[float] = ()
) -> Probe:
    """Return a probe at one length, which its title names, or at several shares of the context."""
    if thousands is not None:
        shares = (_share(thousands),)
        title = f"{title} at {percent(shares[0])} of the context"

    def run(setting: Setting) -> Finding:
        return _ask(setting, name, shares, check, "long-context")

    return Probe(name, "long", title, reason, True, run, _cost(name, shares), _lacks(name))


def _share(thousands: int) -> float:
    return thousands * 1024 / FULL


AFTER_LONG: tuple[Probe, ...] = (
    _probe(
        "decode-sweep", "decode degeneracy sweep",
        "loops start during decoding, and a needle of four digits is too short to show them",
        _healthy("prose"), shares=(0.0, _share(128), _share(200), _share(250)),
    ),
    _probe(
        "mixed-json", "mixed-unicode JSON", "many scripts in one JSON value, far from the start of the prompt",
        _json, thousands=128,
    ),
    _probe("stable-json", "structured JSON", "JSON must hold at half the context", _json, thousands=128),
    _probe("stable-code", "code", "code must keep its form at long contexts", _python, thousands=200),
    _probe("stable-unicode", "unicode and math", "rare symbols near the end of the context", _terms, thousands=250),
)  # fmt: skip
