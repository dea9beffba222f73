"""Loop rate: how often a checkpoint falls into a loop on open-ended prompts.

A pruned model can score well on tasks and still never finish a story. Each prompt is answered greedily and at
temperature 0.7, and the loop detector reads the texts. A small model that lost too many experts fails differently: it
stops after a few words. Such texts count too. A prompt is worse than with the source if more of its texts are broken. A
sign test over prompts decides whether that can be chance, because the texts of one prompt are not independent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from halfbyte.degeneracy.loops import has_loop
from halfbyte.degeneracy.prompts import open_prompts
from halfbyte.errors import UsageError
from halfbyte.statistics.proportions import sign_test, wilson

if TYPE_CHECKING:
    from halfbyte.degeneracy.generate import Written
    from halfbyte.ui.console import Activity

TEMPERATURES = (0.0, 0.7)
TOKENS = 512
FEWEST_WORDS = 25  # of a complete answer to these prompts
SHOWN = 3  # looping texts in a report
SHOWN_CHARACTERS = 240  # from the end, where they loop
SIGNIFICANT = 0.05
# Without a source to compare with: no good model comes near this share. The detector itself errs in 0.2 %.
TOLERATED = 0.02


@dataclass(frozen=True, slots=True)
class LoopRate:
    """Counts over all texts; `by_prompt` counts each prompt's broken texts: those that loop or are short."""

    texts: int
    loops: int
    short: int  # ended after a few words
    unfinished: int  # neither looping nor complete: cut by the token limit
    by_temperature: tuple[tuple[float, int], ...]  # loops
    by_prompt: tuple[int, ...]
    examples: tuple[str, ...]  # ends of the first looping texts, on one line each

    @property
    def interval(self) -> tuple[float, float]:
        """Return the 95 % interval of the share of loops."""
        return wilson(self.loops, self.texts)

    def as_dict(self) -> dict[str, Any]:
        """Return a JSON object."""
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
    """A sentence, and whether it is a warning."""

    sentence: str
    flagged: bool
    p: float | None  # of the sign test, if there is a source
    unclear: bool = False  # worse than expected, but in too few texts to be significant

    @property
    def level(self) -> Literal["good", "note", "bad"]:
        """Return the console level."""
        return "bad" if self.flagged else "note" if self.unclear else "good"


@dataclass(frozen=True, slots=True)
class Judged:
    """Loop rates of the checkpoint and its source (if tested), and the verdict."""

    found: LoopRate
    source: LoopRate | None
    verdict: Verdict

    def as_dict(self) -> dict[str, Any]:
        """Return a JSON object."""
        return {
            **self.found.as_dict(),
            "source": None if self.source is None else self.source.as_dict(),
            "p": self.verdict.p,
            "flagged": self.verdict.flagged,
            "level": self.verdict.level,
        }


def loop_rate(
    folder: Path,
    *,
    prompts: Sequence[str] | None = None,
    seed: int = 0,
    tokens: int = TOKENS,
    activity: Activity | None = None,
) -> LoopRate:
    """Generate an answer to every prompt at every temperature and count the loops; `activity` shows the progress."""
    chosen = list(open_prompts() if prompts is None else prompts)
    if not chosen:
        raise UsageError("no prompts specified", fix="pass at least one prompt")
    if activity is not None:
        activity.begin(f"decoding {folder} into memory")
    from halfbyte.degeneracy.generate import open_writer  # noqa: PLC0415 - imports torch and transformers

    def report(step: int) -> None:
        if activity is not None:
            activity.at(step, tokens, "tokens", at_most=True)  # texts may end earlier

    with open_writer(folder) as writer:
        if activity is not None:
            activity.begin(f"generating {len(chosen) * len(TEMPERATURES)} texts with {folder}")
        ids = [writer.asked(prompt) for prompt in chosen]
        heat = [temperature for temperature in TEMPERATURES for _ in chosen]
        texts = writer.write(ids * len(TEMPERATURES), tokens=tokens, temperatures=heat, seed=seed, progress=report)
    if activity is not None:
        activity.begin("looking for loops")
    return rate_of(texts, len(chosen))


def rate_of(texts: Sequence[Written], prompts: int) -> LoopRate:
    """Count loops in texts, ordered by temperature, then by prompt."""
    loops = [has_loop(text.text, cut=not text.ended) for text in texts]
    short = [is_short(text.text, ended=text.ended) and not loop for text, loop in zip(texts, loops, strict=True)]
    parts = [loops[start : start + prompts] for start in range(0, len(loops), prompts)]
    by_prompt = [sum(loops[at::prompts]) + sum(short[at::prompts]) for at in range(prompts)]
    looping = [text.text for text, loop in zip(texts, loops, strict=True) if loop]
    return LoopRate(
        texts=len(texts),
        loops=sum(loops),
        short=sum(short),
        unfinished=sum(not text.ended and not loop for text, loop in zip(texts, loops, strict=True)),
        by_temperature=tuple((temperature, sum(part)) for temperature, part in zip(TEMPERATURES, parts, strict=True)),
        by_prompt=tuple(by_prompt),
        examples=tuple(_one_line(text) for text in looping[:SHOWN]),
    )


def is_short(text: str, *, ended: bool) -> bool:
    """Whether a text ended on its own after only a few words."""
    return ended and len(text.split()) < FEWEST_WORDS


def judge(rate: LoopRate, source: LoopRate | None = None) -> Verdict:
    """Return the verdict: flagged if significantly worse than the source, or without one above TOLERATED."""
    low, high = rate.interval
    sentence = f"loops in {rate.loops} of {rate.texts} texts ({100 * low:.0f}-{100 * high:.0f} %)"
    if source is None:
        return Verdict(sentence, low > TOLERATED, None, unclear=bool(rate.loops))
    if len(source.by_prompt) != len(rate.by_prompt) or source.texts != rate.texts:
        raise UsageError("the two loop rates come from different prompts", fix="use the same prompts for both")
    pairs = list(zip(rate.by_prompt, source.by_prompt, strict=True))
    p = sign_test(sum(ours > theirs for ours, theirs in pairs), sum(ours < theirs for ours, theirs in pairs))
    sentence += f", the source in {source.loops}"
    if rate.short or source.short:
        sentence += f"; {rate.short} end after a few words, the source's {source.short}"
    more = sum(rate.by_prompt) > sum(source.by_prompt)
    if more and p >= SIGNIFICANT:
        sentence += f"; more than the source, but not significant (p {p:.2g}): test with more prompts"
    return Verdict(sentence, p < SIGNIFICANT, p, unclear=more)


def _one_line(text: str) -> str:
    """Return the end of a text with control characters escaped."""
    return text[-SHOWN_CHARACTERS:].encode("unicode_escape").decode("ascii")
