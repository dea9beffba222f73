"""From answers to a finding: which are usable, which are right, and how sure that is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from halfbyte.validate.probe.answers import Answer
from halfbyte.validate.probe.kinds import Finding, Shown, Verdict
from halfbyte.validate.statistics.proportions import wilson

_TOKEN_0 = "!" * 16
NO_ANSWER = "no usable answer"


def share_of(found: int, count: int) -> dict[str, Any]:
    """Return a rate for probe.json: with Wilson's interval, since 0 of 40 only says less than 9 %."""
    low, high = wilson(found, count)
    share = found / count if count else None
    return {"found": found, "of": count, "share": share, "low": round(low, 4), "high": round(high, 4)}


def no_answers(answers: Sequence[Answer]) -> Finding | None:
    """Return what to say where no answer is usable; None where some are."""
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
    """Return the finding over answers, each with what is wrong in it; `needed` of them must be right, else all.

    A request without an answer is not right. Where only such requests are missing, or no answer came at all, the probe
    is broken, not failed: that says nothing about the model. A loop or a broken character fails the probe however many
    answers are right: no sound model writes them.
    """
    nothing = no_answers(answers)
    if nothing:
        return nothing
    found = [list(wrong) for wrong in wrongs]
    missing = [place for place, answer in enumerate(answers) if answer.error and not found[place]]
    for place in missing:
        found[place].append(Shown(answers[place].error or "", NO_ANSWER, 0, 0, answers[place].id))
    right, needed = sum(not wrong for wrong in found), len(answers) if needed is None else needed
    shown = tuple(one for wrong in found for one in wrong)
    hard = _cause_of(shown)
    passed = right >= needed and hard is None
    lost = not passed and hard is None and right + len(missing) >= needed
    none = f", {len(missing)} without an answer: {answers[missing[0]].error}" if missing else ""
    return Finding(
        Verdict.PASSED if passed else Verdict.BROKEN if lost else Verdict.FAILED,
        f"{right} / {len(answers)} {what}{none}",
        f"{needed} / {len(answers)}",
        {**(numbers or {}), "right": share_of(right, len(answers))},
        shown,
        None if passed or lost else hard or cause,
    )


def _cause_of(shown: Sequence[Shown]) -> str | None:
    """Return the cause that a defect itself tells, whatever the probe was about."""
    for one in shown:
        if one.what == NO_ANSWER:
            continue
        kind = one.what.partition(":")[0]
        if _TOKEN_0 in one.text:
            return "exclamation-marks"
        if kind in {"loop", "repeated-character"}:
            return "loop"
        if kind in {"replacement-character", "mojibake", "control-character", "lone-surrogate"}:
            return "broken-characters"
    return None


def each(answers: Sequence[Answer], wrong: Callable[[int, Answer], Sequence[Shown]]) -> list[list[Shown]]:
    """Apply a judgement to every answer that is one."""
    return [[] if answer.error else list(wrong(number, answer)) for number, answer in enumerate(answers)]
