"""How often a checkpoint falls into a loop when it is asked for open-ended text.

A pruned model can score well on tasks and still never end a story. Each prompt is answered greedily and at 0.7, and
the loop detector reads what was written. A small model that lost too many experts breaks in another way: it stops after
a few words. Such texts are counted too. With the source's rate beside it, a prompt counts as worse where more of its
texts are broken than the source's; a sign test over prompts says whether that can be chance, because the texts of one
prompt are not independent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from halfbyte.errors import UsageError
from halfbyte.validate.loops import has_loop
from halfbyte.validate.prompts import open_prompts
from halfbyte.validate.statistics.proportions import sign_test, wilson

if TYPE_CHECKING:
    from halfbyte.validate.generate import Written

TEMPERATURES = (0.0, 0.7)
TOKENS = 512
FEWEST_WORDS = 25  # of an answer to these prompts; a text that ends before is broken off
SHOWN = 3  # looping texts in a report
SHOWN_CHARACTERS = 240  # of their ends: that is where they loop
SIGNIFICANT = 0.05
# Without a source to compare with: a share that no good model comes near. The detector itself is wrong in 0.2 %.
TOLERATED = 0.02


@dataclass(frozen=True, slots=True)
class LoopRate:
    """What the texts were; `by_prompt` is how many of each prompt's texts are broken: they loop, or are short."""

    texts: int
    loops: int
    short: int  # ended after a few words
    unfinished: int  # neither looping nor ended: cut off where there was no more room
    by_temperature: tuple[tuple[float, int], ...]  # loops
    by_prompt: tuple[int, ...]
    examples: tuple[str, ...]  # the ends of the first looping texts, on one line each

    @property
    def interval(self) -> tuple[float, float]:
        """Return the 95 % interval of the share of loops."""
        return wilson(self.loops, self.texts)

    def as_dict(self) -> dict[str, Any]:
        """Return it for JSON."""
        low, high = self.interval
        return {
            "texts": self.texts,
            "loops": self.loops,
            "short": self.short,
            "unfinished": self.unfinished,
            "share": self.loops / self.texts,
            "low": low,
            "high": high,
            "by_temperature": {str(temperature): loops for temperature, loops in self.by_temperature},
            "examples": list(self.examples),
        }


@dataclass(frozen=True, slots=True)
class Verdict:
    """One sentence, and whether it is a warning."""

    sentence: str
    flagged: bool
    p: float | None  # of the sign test, where there is a source
    unclear: bool = False  # worse than it should be, in too few texts to prove anything

    @property
    def level(self) -> Literal["good", "note", "bad"]:
        """Return how the console marks it."""
        return "bad" if self.flagged else "note" if self.unclear else "good"


@dataclass(frozen=True, slots=True)
class Judged:
    """What was written, by the source too where it was asked, and the verdict."""

    found: LoopRate
    source: LoopRate | None
    verdict: Verdict

    def as_dict(self) -> dict[str, Any]:
        """Return it for JSON."""
        return {
            **self.found.as_dict(),
            "source": None if self.source is None else self.source.as_dict(),
            "p": self.verdict.p,
            "flagged": self.verdict.flagged,
            "level": self.verdict.level,
        }


def loop_rate(folder: Path, *, prompts: Sequence[str] | None = None, seed: int = 0, tokens: int = TOKENS) -> LoopRate:
    """Let a checkpoint answer every prompt at every temperature, and count."""
    asked = list(open_prompts() if prompts is None else prompts)
    if not asked:
        raise UsageError("there are no prompts", fix="give at least one")
    from halfbyte.validate.generate import open_writer  # noqa: PLC0415 - torch and transformers, for who writes

    with open_writer(folder) as writer:
        ids = [writer.asked(prompt) for prompt in asked]
        heat = [temperature for temperature in TEMPERATURES for _ in asked]
        texts = writer.write(ids * len(TEMPERATURES), tokens=tokens, temperatures=heat, seed=seed)
    return rate_of(texts, len(asked))


def rate_of(texts: Sequence[Written], prompts: int) -> LoopRate:
    """Count loops in texts: all prompts at the first temperature, then at the next."""
    loops = [has_loop(text.text) for text in texts]
    short = [is_short(text.text, ended=text.ended) and not loop for text, loop in zip(texts, loops, strict=True)]
    parts = [loops[start : start + prompts] for start in range(0, len(loops), prompts)]
    by_prompt = [sum(loops[at::prompts]) + sum(short[at::prompts]) for at in range(prompts)]
    bad = [text.text for text, loop in zip(texts, loops, strict=True) if loop]
    return LoopRate(
        texts=len(texts),
        loops=sum(loops),
        short=sum(short),
        unfinished=sum(not text.ended and not loop for text, loop in zip(texts, loops, strict=True)),
        by_temperature=tuple((heat, sum(part)) for heat, part in zip(TEMPERATURES, parts, strict=True)),
        by_prompt=tuple(by_prompt),
        examples=tuple(_one_line(text) for text in bad[:SHOWN]),
    )


def is_short(text: str, *, ended: bool) -> bool:
    """Whether a text ended by itself before it said anything."""
    return ended and len(text.split()) < FEWEST_WORDS


def judge(found: LoopRate, source: LoopRate | None = None) -> Verdict:
    """Say in a sentence how often it loops, and flag what the source does not do, or nobody should."""
    low, high = found.interval
    sentence = f"loops in {found.loops} of {found.texts} texts ({100 * low:.0f}-{100 * high:.0f} %)"
    if source is None:
        return Verdict(sentence, low > TOLERATED, None, unclear=bool(found.loops))
    if len(source.by_prompt) != len(found.by_prompt) or source.texts != found.texts:
        raise UsageError("the two were not asked the same", fix="give both the same prompts")
    pairs = list(zip(found.by_prompt, source.by_prompt, strict=True))
    p = sign_test(sum(mine > its for mine, its in pairs), sum(mine < its for mine, its in pairs))
    sentence += f", the source in {source.loops}"
    if found.short or source.short:
        sentence += f"; {found.short} end after a few words, the source's {source.short}"
    more = sum(found.by_prompt) > sum(source.by_prompt)
    if more and p >= SIGNIFICANT:
        sentence += f"; more than the source, but no proof (p {p:.2g}): ask with more prompts"
    return Verdict(sentence, p < SIGNIFICANT, p, unclear=more)


def _one_line(text: str) -> str:
    """Return the end of a text without anything that a terminal would act on."""
    return text[-SHOWN_CHARACTERS:].encode("unicode_escape").decode("ascii")
