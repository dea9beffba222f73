"""The ladder of contexts: one entry of a long list is asked for, near its start, in its middle, near its end.

The names are those at the card's limit of 262,144 tokens; a smaller server gets the same shares of its own limit. Every
rung has a list of its own, so that none is answered from another's cached prefix.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from halfbyte.validate.probe.answers import Answer
from halfbyte.validate.probe.card import checks
from halfbyte.validate.probe.context import FULL, Haystack, Hidden, Turns, entries, listed
from halfbyte.validate.probe.judging import each, judged
from halfbyte.validate.probe.kinds import Cost, Finding, Probe, Setting, Shown
from halfbyte.validate.probe.marks import whole

OUTPUT_TOKENS = 64
DEPTHS = (0.02, 0.5, 0.98)
NEEDED = 2  # one of the three may be missed, as sound models do now and then; a band that is broken loses all
RUNGS = (32, 64, 96, 112, 120, 128, 136, 160, 180, 200, 225, 250)  # times 1,024 tokens, as the card names them
_SPARE = 16
_FEWEST_TOKENS = 128  # below it a list has hardly an entry


def long_turns(words: Haystack, number: int, padding: str, seed: int, question: str) -> Turns:
    """Return a question about a list of so many entries."""
    text = f"{words.instruction}\n\n{listed(entries(words, number, seed), padding)}\n\n{question}"
    return [{"role": "user", "content": text}]


def hidden_at(words: Haystack, number: int, seed: int, depth: float) -> Hidden:
    """Return the entry at a depth; of an empty list one that nobody finds."""
    return entries(words, max(1, number), seed)[round(depth * max(0, number - 1))]


def tokens_for(setting: Setting, share: float, output_tokens: int) -> int:
    """Return how long a prompt may be at a share of the limit: its answer must have room."""
    return min(setting.lengths.at(share), setting.context - output_tokens)


def rung_seed(setting: Setting, share: float) -> int:
    """Return a seed of its own for each rung."""
    return setting.seed * 1_000_003 + round(share * FULL)


def _finding(setting: Setting, share: float) -> Finding:
    words, seed = setting.lengths.words, rung_seed(setting, share)
    tokens = tokens_for(setting, share, OUTPUT_TOKENS)

    def build(number: int, padding: str, depth: float = 0.5) -> Turns:
        key = hidden_at(words, number, seed, depth).key
        return long_turns(words, number, padding, seed, words.question.format(key=key))

    fitted = setting.lengths.fit(tokens, build)
    wanted = [hidden_at(words, fitted.entries, seed, depth) for depth in DEPTHS]
    # One after the other: the second and third have the first's prefix. Their keys may be a few tokens longer.
    turns = [build(fitted.entries, fitted.padding, depth) for depth in DEPTHS]
    answers = [setting.client.chat(one, max_tokens=OUTPUT_TOKENS - _SPARE) for one in turns]
    lengths = [answer.prompt_tokens or fitted.tokens for answer in answers]
    wrongs = each(answers, lambda number, answer: _wrong(wanted[number], answer))
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


def _wrong(wanted: Hidden, answer: Answer) -> Sequence[Shown]:
    found = checks.sound(answer)
    if not found and not re.search(rf"(?<!\d){wanted.value}(?!\d)", answer.text):
        found = [whole(answer, f"{wanted.key} has {wanted.value}")]
    return found


def _rung(name: str, title: str, share: float) -> Probe:
    def lacks(setting: Setting) -> str | None:
        tokens = tokens_for(setting, share, OUTPUT_TOKENS)
        return None if tokens >= _FEWEST_TOKENS else f"a context of {setting.context:,} tokens is too short"

    def cost(setting: Setting) -> Cost:
        return Cost(len(DEPTHS), len(DEPTHS) * tokens_for(setting, share, OUTPUT_TOKENS), len(DEPTHS) * 8)

    reason = "long contexts fail in bands: at 96k to 160k this card's server wrote only exclamation marks"
    return Probe(name, "long", title, reason, True, lambda setting: _finding(setting, share), cost, lacks)


CONTEXTS: tuple[Probe, ...] = (
    *(_rung(f"context-{rung}k", f"{rung}k context", rung * 1024 / FULL) for rung in RUNGS),
    _rung("context-limit", "context near the limit", 1.0),
)
