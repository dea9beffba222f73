"""Context ladder: find one entry of a long list, near its start, in its middle and near its end.

A rung is a share of the served context, named by its percentage. Every rung has its own list, so that none is answered
from the cached prefix of another.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from halfbyte.probe.answers import Answer
from halfbyte.probe.card import checks
from halfbyte.probe.context import (
    FULL,
    Haystack,
    Hidden,
    Turns,
    entries,
    listed,
)
from halfbyte.probe.judging import each, judged
from halfbyte.probe.kinds import (
    Cost,
    Finding,
    Probe,
    Setting,
    Shown,
)
from halfbyte.probe.marks import whole

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


def _wrong(expected: Hidden, answer: Answer) -> Sequence[Shown]:
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
