"""Loop test: how often a checkpoint falls into a loop on open-ended prompts, compared with its source.

A pruned model can score well on tasks and still never finish a story. Each prompt is answered greedily and at
temperature 0.7, and the loop detector reads the texts. A small model that lost too many experts fails differently: it
stops after a few words. Such texts count too. A prompt is worse than with the source if more of its texts are broken. A
sign test over prompts decides whether that can be chance, because the texts of one prompt are not independent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from halfbyte.checkpoint.folder import open_checkpoint
from halfbyte.checkpoint.output_folder import FOLDER, PLAN
from halfbyte.degeneracy.watch import has_loop
from halfbyte.errors import CheckpointError, MachineError, TensorError, UsageError
from halfbyte.evidence.loops import LoopCounts, Loops
from halfbyte.evidence.measured_files import measured_in
from halfbyte.families.model import describe
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

    def counts(self) -> LoopCounts:
        """Return the counts for loops.json."""
        low, high = self.interval
        return LoopCounts(
            texts=self.texts,
            loops=self.loops,
            short=self.short,
            unfinished=self.unfinished,
            share=self.loops / self.texts,
            low=low,
            high=high,
            by_temperature={str(temperature): loops for temperature, loops in self.by_temperature},
            examples=self.examples,
        )


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

    rate: LoopRate
    source: LoopRate | None
    verdict: Verdict

    def record(self, tokens: int, measured: Mapping[str, Any] | None = None) -> Loops:
        """Return the contents of loops.json; `tokens` is the limit per text."""
        return Loops(
            **vars(self.rate.counts()),
            temperatures=TEMPERATURES,
            tokens=tokens,
            source=None if self.source is None else self.source.counts(),
            p=self.verdict.p,
            flagged=self.verdict.flagged,
            level=self.verdict.level,
            **(measured or {}),
        )


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
        ids = [writer.prompt_tokens(prompt) for prompt in chosen]
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


# Open-ended prompts: stories and explanations in plain words, which both kimi-mini and Kimi can answer.

_FILE = "open_ended.txt"


def open_prompts(count: int | None = None) -> list[str]:
    """Return `count` of the built-in prompts, or all of them."""
    text = (files("halfbyte.degeneracy") / "data" / _FILE).read_text(encoding="utf-8")
    prompts = text.splitlines()
    if count is not None and not 1 <= count <= len(prompts):
        raise UsageError(f"{count} prompts requested, but there are {len(prompts)}", fix=f"request 1 to {len(prompts)}")
    if count is None or count == len(prompts):
        return prompts
    return [prompts[at * len(prompts) // count] for at in range(count)]  # evenly spaced: similar prompts are adjacent


# Loop test after pruning: generate texts with the pruned checkpoint and its source, and compare their loop rates.
#
# By default only models with small decoded weights are tested. Larger ones need an explicit number of prompts and
# enough memory. If the test cannot run, the report gives the reason. That is not an error, because the checkpoint is
# complete.

QUICK_PROMPTS = 16
QUICK_TOKENS = 256
# kimi-mini has 80 MB, and the test of it and its source takes 40 s on one core. Time grows with the weights.
QUICK_NBYTES = 1 << 28
_SERVE_INSTEAD = "serve the model and run `halfbyte probe`"


@dataclass(frozen=True, slots=True)
class LoopTest:
    """Result of the loop test: a verdict, or the reason why there is none."""

    judged: Judged | None
    unmeasured: str = ""

    @property
    def flagged(self) -> bool:
        """Whether the checkpoint loops or stops early more often than its source."""
        return self.judged is not None and self.judged.verdict.flagged

    @property
    def sentence(self) -> str:
        """Return the result as a sentence."""
        return f"loops: not measured, {self.unmeasured}" if self.judged is None else self.judged.verdict.sentence

    def as_dict(self) -> dict[str, Any]:
        """Return a JSON object."""
        return {"unmeasured": self.unmeasured} if self.judged is None else self.judged.record(QUICK_TOKENS).as_json()


def keep_judged(out: Path, judged: Judged, tokens: int) -> None:
    """Write the result to the output folder of a run; leave other folders unchanged."""
    if (out / FOLDER / PLAN).is_file():
        judged.record(tokens, measured_in(out)).write(out / FOLDER / Loops.file)


def loop_test(out: Path, source: Path | None, prompts: int | None = None, activity: Activity | None = None) -> LoopTest:
    """Generate texts with a pruned checkpoint and its source (if given), and write the verdict to the output folder.

    Without `prompts`, only models that finish in seconds are tested.
    """
    largest = source or out
    try:
        if prompts is None and (_experts_nbytes(largest) > QUICK_NBYTES or _decoded_nbytes(largest) > QUICK_NBYTES):
            return LoopTest(None, f"the test would take minutes; {_SERVE_INSTEAD}, or pass --loops {QUICK_PROMPTS}")
        chosen = open_prompts(prompts or QUICK_PROMPTS)
        rate = loop_rate(out, prompts=chosen, tokens=QUICK_TOKENS, activity=activity)
        source_rate = _source_rate(source, chosen, activity) if source is not None else None
    except MachineError:
        return LoopTest(None, f"not enough memory to decode the weights; {_SERVE_INSTEAD}")
    except (UsageError, CheckpointError, TensorError) as error:
        return LoopTest(None, error.what)
    judged = Judged(rate, source_rate, judge(rate, source_rate))
    judged.record(QUICK_TOKENS, measured_in(out)).write(out / FOLDER / Loops.file)
    return LoopTest(judged)


def _experts_nbytes(source: Path) -> int:
    """Return the decoded size of the experts alone, which is enough to rule out a large model.

    This avoids importing torch and transformers, which takes as long as pruning several gigabytes.
    """
    linears = describe(open_checkpoint(source)).linears.values()
    return sum(4 * linear.weights for linear in linears if linear.expert is not None)


def _decoded_nbytes(source: Path) -> int:
    from halfbyte.degeneracy.generate import decoded_nbytes  # noqa: PLC0415 - imports torch

    return decoded_nbytes(source)


def _source_rate(source: Path, prompts: list[str], activity: Activity | None) -> LoopRate | None:
    """Measure the source; return None if it does not fit in memory."""
    try:
        return loop_rate(source, prompts=prompts, tokens=QUICK_TOKENS, activity=activity)
    except MachineError:
        return None
