"""Judge answers: which are usable, which are right, and how certain the rate is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from halfbyte.probe.answers import Answer
from halfbyte.probe.kinds import Finding, Shown, Verdict
from halfbyte.statistics.proportions import wilson

_TOKEN_0 = "!" * 16
NO_ANSWER = "no usable answer"


def share_of(found: int, count: int) -> dict[str, Any]:
    """Return a rate for probe.json with its Wilson interval: 0 of 40 only means less than 9 %."""
    low, high = wilson(found, count)
    share = found / count if count else None
    return {"found": found, "of": count, "share": share, "low": round(low, 4), "high": round(high, 4)}


def no_answers(answers: Sequence[Answer]) -> Finding | None:
    """Return a BROKEN finding if no answer is usable, else None."""
    errors = [answer.error for answer in answers if answer.error]
    if answers and len(errors) == len(answers):
        more = f" ({len(errors):,} times)" if len(errors) > 1 else ""
        return Finding(Verdict.BROKEN, f"no usable answer: {errors[0]}{more}", numbers={"errors": errors[:20]})
    return None


def judged(
    answers: Sequence[Answer],
    wrongs: Sequence[Sequence[Shown]],
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
        faults[place].append(Shown(answers[place].error or "", NO_ANSWER, 0, 0, answers[place].id))
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


def _cause_of(shown: Sequence[Shown]) -> str | None:
    """Return the cause that a defect itself indicates, for any probe."""
    for fault in shown:
        if fault.what == NO_ANSWER:
            continue
        kind = fault.what.partition(":")[0]
        if _TOKEN_0 in fault.text:
            return "exclamation-marks"
        if kind in {"loop", "repeated-character"}:
            return "loop"
        if kind in {"replacement-character", "mojibake", "control-character", "lone-surrogate"}:
            return "broken-characters"
    return None


def each(answers: Sequence[Answer], wrong: Callable[[int, Answer], Sequence[Shown]]) -> list[list[Shown]]:
    """Apply a check to every answer without an error."""
    return [[] if answer.error else list(wrong(number, answer)) for number, answer in enumerate(answers)]
