"""Judge answers: which are usable, which are right, how certain the rate is, and which part of a text is wrong."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from halfbyte.degeneracy.defects import Severity, find_defects
from halfbyte.degeneracy.rules import KindOfText
from halfbyte.degeneracy.watch import LoopWatch, find_loop
from halfbyte.probe.answers import Answer
from halfbyte.probe.client import Watch
from halfbyte.probe.probe import Excerpt, Finding, Verdict
from halfbyte.statistics.proportions import sign_test, wilson

_TOKEN_0 = "!" * 16
NO_ANSWER = "no usable answer"


def share_of(part: int, count: int) -> dict[str, Any]:
    """Return a rate for probe.json with its Wilson interval: 0 of 40 only means less than 9 %."""
    low, high = wilson(part, count)
    share = part / count if count else None
    return {"count": part, "total": count, "share": share, "low": round(low, 4), "high": round(high, 4)}


def no_answers(answers: Sequence[Answer]) -> Finding | None:
    """Return a BROKEN finding if no answer is usable, else None."""
    errors = [answer.error for answer in answers if answer.error]
    if answers and len(errors) == len(answers):
        more = f" ({len(errors):,} times)" if len(errors) > 1 else ""
        return Finding(Verdict.BROKEN, f"no usable answer: {errors[0]}{more}", numbers={"errors": errors[:20]})
    return None


def judged(
    answers: Sequence[Answer],
    wrongs: Sequence[Sequence[Excerpt]],
    *,
    what: str = "right",
    needed: int | None = None,
    cause: str | None = "wrong-answer",
    numbers: Mapping[str, Any] | None = None,
) -> Finding:
    """Return the finding over answers and their faults (`wrongs`); `needed` of them must be right, by default all.

    A request without an answer is not right. If only such requests are missing, or there is no answer at all, the probe
    is broken, not failed, because that says nothing about the model. A loop or a broken character fails the probe
    regardless of the other answers, because no healthy model writes them.
    """
    unusable = no_answers(answers)
    if unusable:
        return unusable
    faults = [list(wrong) for wrong in wrongs]
    missing = [place for place, answer in enumerate(answers) if answer.error and not faults[place]]
    for place in missing:
        faults[place].append(Excerpt(answers[place].error or "", NO_ANSWER, 0, 0, answers[place].id))
    right, needed = sum(not wrong for wrong in faults), len(answers) if needed is None else needed
    shown = tuple(fault for wrong in faults for fault in wrong)
    hard = _cause_of(shown)
    passed = right >= needed and hard is None
    is_broken = not passed and hard is None and right + len(missing) >= needed
    unanswered = f", {len(missing)} without an answer: {answers[missing[0]].error}" if missing else ""
    return Finding(
        Verdict.PASSED if passed else Verdict.BROKEN if is_broken else Verdict.FAILED,
        f"{right} / {len(answers)} {what}{unanswered}",
        f"{needed} / {len(answers)}",
        {**(numbers or {}), "right": share_of(right, len(answers))},
        shown,
        None if passed or is_broken else hard or cause,
    )


def _cause_of(shown: Sequence[Excerpt]) -> str | None:
    """Return the cause that a defect itself indicates, for any probe."""
    for fault in shown:
        if fault.problem == NO_ANSWER:
            continue
        kind = fault.problem.partition(":")[0]
        if _TOKEN_0 in fault.text:
            return "exclamation-marks"
        if kind in {"loop", "repeated-character"}:
            return "loop"
        if kind in {"replacement-character", "mojibake", "control-character", "lone-surrogate"}:
            return "broken-characters"
    return None


def each(answers: Sequence[Answer], wrong: Callable[[int, Answer], Sequence[Excerpt]]) -> list[list[Excerpt]]:
    """Apply a check to every answer without an error."""
    return [[] if answer.error else list(wrong(number, answer)) for number, answer in enumerate(answers)]


# Mark the wrong part of an offending text.

OPEN, CLOSE = "⟦", "⟧"
AROUND = 60  # characters shown before and after a mark
LONGEST_MARK = 160
MOST_SHOWN = 5  # per probe; the trace has all


def marked(shown: Excerpt) -> str:
    """Return one line: some text before, the wrong part in brackets, some text after."""
    start, end = max(0, shown.start), min(len(shown.text), max(shown.start, shown.end))
    before, wrong, after = shown.text[:start], shown.text[start:end], shown.text[end:]
    if len(wrong) > LONGEST_MARK:
        wrong = wrong[: LONGEST_MARK // 2] + " … " + wrong[-LONGEST_MARK // 2 :]
    before = ("…" if len(before) > AROUND else "") + before[-AROUND:]
    after = after[:AROUND] + ("…" if len(after) > AROUND else "")
    return visible(f"{before}{OPEN}{wrong}{CLOSE}{after}" if end > start else f"{before}{OPEN}{CLOSE}{after}")


def visible(text: str) -> str:
    """Escape characters that a terminal would hide or interpret."""
    return "".join(
        char if char == " " or (char.isprintable() and unicodedata.category(char) not in {"Cf", "Cs"})
        else {"\n": "⏎", "\t": "⇥"}.get(char, f"\\u{{{ord(char):04X}}}")
        for char in text
    )  # fmt: skip


def first_difference(right: str, got: str, trace: str = "") -> Excerpt | None:
    """Mark the first difference of two texts, with character names: a Persian yeh looks like an Arabic one."""
    if right == got:
        return None
    at = next((i for i, (a, b) in enumerate(zip(right, got, strict=False)) if a != b), min(len(right), len(got)))
    what = f"{_named(got, at)} instead of {_named(right, at)}"
    return Excerpt(got, what, at, min(at + 1, len(got)), trace)


def _named(text: str, at: int) -> str:
    if at >= len(text):
        return "the end"
    return f"U+{ord(text[at]):04X} {unicodedata.name(text[at], 'unnamed')}"


def defects(answer: Answer, kind: KindOfText = "any") -> list[Excerpt]:
    """Return defects that no healthy answer has, in content and reasoning."""
    return [
        Excerpt(text, f"{defect.kind}: {defect.detail}", defect.start, defect.end, answer.id)
        for name, text in answer.written
        for defect in find_defects(text, kind_of_text=kind, cut=answer.cut_in == name)
        if defect.severity is Severity.HARD
    ]


def whole(answer: Answer, what: str) -> Excerpt:
    """Mark a whole answer as wrong."""
    text = answer.text or answer.reasoning or answer.error or ""
    return Excerpt(text, what, 0, len(text), answer.id)


# Cancel streams as soon as they loop: a loop that runs to the end of the context costs minutes.


def cancel_on_loop(kind: KindOfText = "prose") -> Watch:
    """Return a watch that cancels a stream when its content or its reasoning loops."""
    watches = {"content": LoopWatch(kind), "reasoning": LoopWatch(kind)}

    def watch(chunk: Mapping[str, Any]) -> str | None:
        for name, reader in watches.items():
            loop = reader.feed(str(chunk.get(name) or ""))
            if loop is not None:
                return f"loop in the {name}: {loop.sentence}"
        return None

    return watch


def loops(answer: Answer, kind: KindOfText = "prose") -> list[Excerpt]:
    """Return the loops in the content and the reasoning of an answer."""
    shown: list[Excerpt] = []
    for name, text in answer.written:
        loop = find_loop(text, kind, cut=answer.cut_in == name)
        if loop is not None:
            shown.append(Excerpt(text, f"loop: in the {name}, {loop.sentence}", loop.start, loop.end, answer.id))
    return shown


# Gates on the share of bad answers: against a share that no healthy model reaches, or against a reference.
#
# Good models also loop or get cut off occasionally, so one bad answer proves nothing. Without a reference, the whole
# interval must be above the tolerated share. With one, a sign test must show that more prompts are worse than better.
# Answers to one prompt at several temperatures are not independent, so prompts are compared, not answers.

SIGNIFICANT = 0.01  # several gates use it in one run, so 0.05 would give too many false alarms


@dataclass(frozen=True, slots=True)
class Rate:
    """Bad answers by prompt: how many of how many."""

    bad: tuple[int, ...]
    answers: tuple[int, ...]

    @property
    def bad_count(self) -> int:
        """Number of bad answers."""
        return sum(self.bad)

    @property
    def count(self) -> int:
        """Number of answers."""
        return sum(self.answers)

    @property
    def interval(self) -> tuple[float, float]:
        """Return the Wilson interval over prompts, each with its share of bad answers."""
        shares = [bad / answers for bad, answers in zip(self.bad, self.answers, strict=True) if answers]
        return wilson(sum(shares), len(shares))

    @property
    def sentence(self) -> str:
        """Return the rate with its interval: 0 of 40 prompts only means less than 9 %."""
        low, high = self.interval
        between = f"< {high:.0%}" if not self.bad_count else f"{low:.0%} to {high:.0%}"
        return f"{self.bad_count} / {self.count} ({between})"


@dataclass(frozen=True, slots=True)
class Judged:
    """Whether a rate is too high, and its description."""

    too_high: bool
    measured: str
    threshold: str
    numbers: dict[str, Any]


def rate_of(flags: Sequence[Sequence[bool]]) -> Rate:
    """Count the bad answers of each prompt."""
    return Rate(tuple(sum(answers) for answers in flags), tuple(len(answers) for answers in flags))


def judge_rate(ours: Rate, theirs: Rate | None, tolerated: float, what: str) -> Judged:
    """Judge a rate; both sides answered the same prompts."""
    low, high = ours.interval
    interval = [round(low, 4), round(high, 4)]
    numbers: dict[str, Any] = {
        "ours": share_of(ours.bad_count, ours.count),
        "tolerated": tolerated,
        "over_prompts": interval,
    }
    if theirs is None:
        return Judged(low > tolerated, f"{ours.sentence} {what}", f"not significantly above {tolerated:.0%}", numbers)
    sides = zip(ours.bad, ours.answers, theirs.bad, theirs.answers, strict=True)
    pairs = [(bad / of, other_bad / other_of) for bad, of, other_bad, other_of in sides if of and other_of]
    worse, better = sum(a > b for a, b in pairs), sum(a < b for a, b in pairs)
    p = sign_test(worse, better)
    numbers |= {
        "reference": share_of(theirs.bad_count, theirs.count), "prompts_worse": worse, "prompts_better": better, "p": p
    }  # fmt: skip
    return Judged(
        p < SIGNIFICANT,
        f"{ours.sentence} {what}, the reference {theirs.bad_count} / {theirs.count} (p {p:.2g})",
        f"not significantly above the reference (p {SIGNIFICANT})",
        numbers,
    )
