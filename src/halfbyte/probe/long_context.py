"""Long contexts: find one entry of a long list, and answer other questions after it.

The context ladder asks for an entry near the start, in the middle and near the end of a list. A rung is a share of the
served context, named by its percentage. Every rung has its own list, so that none is answered from the cached prefix of
another.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from halfbyte.probe import checks
from halfbyte.probe.answers import Answer
from halfbyte.probe.card_probes import Check, same_json, valid_python
from halfbyte.probe.context import (
    FULL,
    Haystack,
    Hidden,
    Turns,
    entries,
    listed,
)
from halfbyte.probe.judging import each, judged, whole
from halfbyte.probe.probe import (
    Cost,
    Excerpt,
    Finding,
    Probe,
    Setting,
)
from halfbyte.probe.profiles import Item, Items, lacks_section

OUTPUT_TOKENS = 64
DEPTHS = (0.02, 0.5, 0.98)
NEEDED = 2  # of three: healthy models miss one occasionally; a broken band of lengths loses all
RUNGS = (32, 64, 96, 112, 120, 128, 136, 160, 180, 200, 225, 250)  # in units of 1,024 tokens of 262,144, as on the card
KEY_RUNGS = (32, 128)  # with the limit, the three rungs that a budget prefers
_SPARE = 16
_FEWEST_TOKENS = 128  # fewer hardly fit an entry


def percent(share: float) -> str:
    """Format a share of the context for titles: 12.5 %."""
    return f"{100 * share:.3g} %"


def long_turns(words: Haystack, number: int, padding: str, seed: int, question: str) -> Turns:
    """Return a question about a list of `number` entries."""
    text = f"{words.instruction}\n\n{listed(entries(words, number, seed), padding)}\n\n{question}"
    return [{"role": "user", "content": text}]


def hidden_at(words: Haystack, number: int, seed: int, depth: float) -> Hidden:
    """Return the entry at a depth; for an empty list, one that is not in it."""
    return entries(words, max(1, number), seed)[round(depth * max(0, number - 1))]


def tokens_for(setting: Setting, share: float, output_tokens: int) -> int:
    """Return the prompt length at a share of the limit, with room for the answer."""
    return min(setting.lengths.at(share), setting.context - output_tokens)


def rung_seed(setting: Setting, share: float) -> int:
    """Return a separate seed for each rung."""
    return setting.seed * 1_000_003 + round(share * FULL)


def _finding(setting: Setting, share: float) -> Finding:
    words, seed = setting.lengths.words, rung_seed(setting, share)
    tokens = tokens_for(setting, share, OUTPUT_TOKENS)

    def build(number: int, padding: str, depth: float = 0.5) -> Turns:
        key = hidden_at(words, number, seed, depth).key
        return long_turns(words, number, padding, seed, words.question.format(key=key))

    fitted = setting.lengths.fit(tokens, build)
    expected = [hidden_at(words, fitted.entries, seed, depth) for depth in DEPTHS]
    # One after the other: the second and third share the first's prefix. Their keys may be a few tokens longer.
    turns = [build(fitted.entries, fitted.padding, depth) for depth in DEPTHS]
    answers = [setting.client.chat(chat, max_tokens=OUTPUT_TOKENS - _SPARE) for chat in turns]
    lengths = [answer.prompt_tokens or fitted.tokens for answer in answers]
    wrongs = each(answers, lambda number, answer: _wrong(expected[number], answer))
    longest = max(lengths)
    numbers = {"prompt_tokens": lengths, "exact": fitted.exact, "wanted_tokens": tokens, "limit": setting.context}
    return judged(
        answers,
        wrongs,
        needed=NEEDED,
        what=f"right at {longest:,} tokens of {setting.context:,}",
        cause="long-context",
        numbers=numbers,
    )


def _wrong(expected: Hidden, answer: Answer) -> Sequence[Excerpt]:
    faults = checks.healthy(answer)
    if not faults and not re.search(rf"(?<!\d){expected.value}(?!\d)", answer.text):
        faults = [whole(answer, f"expected {expected.value} for {expected.key}")]
    return faults


def _rung(name: str, title: str, share: float, *, repeats: bool = False) -> Probe:
    def lacks(setting: Setting) -> str | None:
        tokens = tokens_for(setting, share, OUTPUT_TOKENS)
        return None if tokens >= _FEWEST_TOKENS else f"a context of {setting.context:,} tokens is too short"

    def cost(setting: Setting) -> Cost:
        return Cost(len(DEPTHS), len(DEPTHS) * tokens_for(setting, share, OUTPUT_TOKENS), len(DEPTHS) * 8)

    reason = "long contexts fail in bands: at 96k to 160k the card's server wrote only exclamation marks"
    return Probe(name, "long", title, reason, True, lambda setting: _finding(setting, share), cost, lacks, repeats)


def _between(rung: int) -> Probe:
    share = rung * 1024 / FULL
    name, title = f"context-{share:.0%}".rstrip("%"), f"context at {percent(share)}"
    return _rung(name, title, share, repeats=rung not in KEY_RUNGS)


CONTEXTS: tuple[Probe, ...] = (*map(_between, RUNGS), _rung("context-limit", "context near the limit", 1.0))


# Answers after a long context: open ones must end without loops, strict ones must still be right.


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
    questions = [(share, item) for share in chosen for item in section.chosen(setting.seed)]
    client = setting.client
    answers = [
        client.chat(
            turns_of(setting, share, section, item), max_tokens=section.max_tokens, **section.options, **item.options
        )
        for share, item in questions
    ]
    wrongs = each(answers, lambda number, answer: check(questions[number][1], answer))
    lengths = [answer.prompt_tokens for answer in answers]
    longest = max((tokens for tokens in lengths if tokens), default=0)
    generated = [answer.completion_tokens for answer in answers]
    numbers: dict[str, Any] = {"prompt_tokens": lengths, "completion_tokens": generated}
    what = f"right, up to {longest:,} tokens"
    return judged(answers, wrongs, what=what, cause=cause, numbers=numbers, needed=section.needed)


def _healthy(kind: str) -> Check:
    return lambda _, answer: checks.healthy(answer, kind)


def _terms(item: Item, answer: Answer) -> list[Excerpt]:
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
        same_json, thousands=128,
    ),
    _probe("stable-json", "structured JSON", "JSON must hold at half the context", same_json, thousands=128),
    _probe("stable-code", "code", "code must keep its form at long contexts", valid_python, thousands=200),
    _probe("stable-unicode", "unicode and math", "rare symbols near the end of the context", _terms, thousands=250),
)  # fmt: skip
