"""Detect invalid scores: chance level, errors, unparsed answers, and empty, truncated, looping or equal answers.

Such a task is ANOMALOUS: its figures are shown, but give no verdict. Each limit is a share of items.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from halfbyte.degeneracy.watch import find_loop
from halfbyte.evaluate.samples import Sample
from halfbyte.evaluate.suites import Task
from halfbyte.statistics.proportions import sign_test, wilson

MOST_ERRORS = 0.005
MOST_EMPTY = 0.05
MOST_TRUNCATED = 0.05
MOST_TRUNCATED_APART = 0.01  # between the two sides: truncated answers are scored as wrong
MOST_LIKELY_BY_CHANCE = 0.05
MOST_UNPARSED = 0.20
MOST_REFUSED = 0.05
MOST_LOOPING = 0.05
MOST_STRICT_GAP = 0.20  # answers that only flexible-extract accepts: a format problem, not a wrong answer
MOST_FORM_APART = 0.05  # difference of that share between the two sides
MOST_OTHER_PROMPTS = 0.005
MOST_ALIKE = 0.5
MOST_ONE_CHOICE = 0.9
ENOUGH = 20  # items that a share needs to be meaningful
INVALID = "[invalid]"  # result of lm-eval's filters without a match
_LETTER = re.compile(r"\W*[A-Za-z]\W*")  # the score ignores punctuation and case
_REFUSAL = re.compile(
    r"\s*(i['\u2019]?m sorry|i am sorry|sorry,|i can(no|['\u2019])t|i am unable|as an ai)", re.IGNORECASE
)


def anomalies(samples: Sequence[Sample], task: Task) -> list[str]:
    """Return the reasons why the items of one side give no valid score."""
    answered = [sample for sample in samples if sample.error is None]
    reasons: list[str] = []
    errors = len(samples) - len(answered)
    if errors > MOST_ERRORS * len(samples):
        last = next(sample.error for sample in samples if sample.error is not None)
        reasons.append(f"{_of(errors, samples)} are missing ({last})")
    if not answered:
        return reasons
    if task.kind == "generate":
        reasons += _of_texts(answered, task)
    else:
        reasons += _of_choices(answered)
    return reasons + _of_scores(answered, task)


def _of_texts(samples: Sequence[Sample], task: Task) -> list[str]:
    reasons: list[str] = []
    empty = sum(not sample.text.strip() for sample in samples)
    null = sum(sample.null for sample in samples)
    if empty > MOST_EMPTY * len(samples):
        reasons.append(f"{_of(empty, samples)} are empty, {null} of them without content from the server")
    if truncated(samples, task) > MOST_TRUNCATED * len(samples):
        reasons.append(_ended(samples))
    looping = sum(find_loop(sample.text, cut=sample.finish_reason == "length") is not None for sample in samples)
    if looping > MOST_LOOPING * len(samples):
        reasons.append(f"{_of(looping, samples)} loop")
    refused = sum(bool(_REFUSAL.match(sample.text)) for sample in samples)
    if refused > MOST_REFUSED * len(samples):
        reasons.append(f"{_of(refused, samples)} are refusals")
    text, count = Counter(sample.text for sample in samples).most_common(1)[0]
    right = sum(sample.target.strip() == text.strip() for sample in samples)
    most = (MOST_ONE_CHOICE if task.short_answer else MOST_ALIKE) * len(samples)
    if len(samples) >= ENOUGH and count > most and text.strip() and right <= MOST_ALIKE * len(samples):
        reasons.append(f"{_of(count, samples)} are the same text: {text[:40]!r}")
    chosen = task.primary.split(",", 1)[1]
    unparsed = sum(_nothing_taken(sample.taken.get(chosen), task) for sample in samples)
    if unparsed > MOST_UNPARSED * len(samples):
        reasons.append(f"{_of(unparsed, samples)} do not match the filter {chosen}")
    return reasons


def _ended(samples: Sequence[Sample]) -> str:
    """Count the finish reasons of answers that the model did not end itself."""
    reasons = Counter(sample.finish_reason for sample in samples if sample.cut)
    parts: list[str] = []
    if reasons["length"]:
        parts.append(f"{_of(reasons.pop('length'), samples)} were truncated at the token limit (finish_reason length)")
    if None in reasons:
        parts.append(f"{_of(reasons.pop(None), samples)} have no finish_reason, so truncation cannot be detected")
    parts += [f"{_of(count, samples)} ended with finish_reason {reason}" for reason, count in reasons.items() if count]
    return ", ".join(parts)


def _nothing_taken(taken: object, task: Task) -> bool:
    """Return whether the filter found no answer. For a letter task, other text does not count as an answer."""
    return taken == INVALID or (task.short_answer and not _LETTER.fullmatch(str(taken)))


def _of_choices(samples: Sequence[Sample]) -> list[str]:
    picks = Counter(_best(sample) for sample in samples)
    choice, count = picks.most_common(1)[0]
    right = sum(sample.target == str(choice) for sample in samples)  # the first items may all have the same answer
    if len(samples) >= ENOUGH and count > MOST_ONE_CHOICE * len(samples) and right <= MOST_ALIKE * len(samples):
        return [f"{_of(count, samples)} chose the same option, number {choice + 1}"]
    equal = sum(len({answer[0] for answer in sample.output}) == 1 for sample in samples)
    return [f"{_of(equal, samples)} have equal likelihoods for every choice"] if equal > len(samples) / 2 else []


def _best(sample: Sample) -> int:
    values = [answer[0] for answer in sample.output]
    return values.index(max(values))


def _of_scores(samples: Sequence[Sample], task: Task) -> list[str]:
    reasons: list[str] = []
    right = sum((sample.scores or {})[task.primary] for sample in samples)
    low, _ = wilson(right, len(samples))
    if task.chance and low <= task.chance < right / len(samples) and len(samples) < ENOUGH:
        reasons.append(f"{len(samples)} items are too few to be above chance, {task.chance:.0%}")
    elif task.chance and low <= task.chance:
        reasons.append(f"{right / len(samples):.1%} is not above chance, {task.chance:.0%}")
    elif not right:
        reasons.append("no answer is correct")
    strict, flexible = _filters(task)
    if all(name in (samples[0].scores or {}) for name in (strict, flexible)):
        narrow, wide = (sum((sample.scores or {})[name] for sample in samples) for name in (strict, flexible))
        if wide - narrow > MOST_STRICT_GAP * len(samples):
            shares = f"strict-match has {narrow / len(samples):.1%}, flexible-extract {wide / len(samples):.1%}"
            reasons.append(f"{shares}: the answer format broke")
    return reasons


def _filters(task: Task) -> tuple[str, str]:
    """Return the names of the strict and the flexible score."""
    metric = task.primary.split(",", 1)[0]
    return f"{metric},strict-match", f"{metric},flexible-extract"


def between(candidate: Sequence[Sample], reference: Sequence[Sample], task: Task) -> list[str]:
    """Return the reasons why two valid scores are not comparable."""
    reasons = _other_prompts(candidate, reference)
    if task.kind == "generate" and not task.few_tokens:
        reasons += _cut_apart(candidate, reference, task)
    return reasons + _form_apart(candidate, reference, task)


def _other_prompts(candidate: Sequence[Sample], reference: Sequence[Sample]) -> list[str]:
    """Report prompts with different token counts: a server truncates or extends them."""
    theirs = {sample.place: sample.prompt_tokens for sample in reference}
    counts = [(sample.prompt_tokens, theirs.get(sample.place)) for sample in candidate]
    known = [(mine, other) for mine, other in counts if mine is not None and other is not None]
    unlike = [(mine, other) for mine, other in known if mine != other]
    if len(unlike) <= MOST_OTHER_PROMPTS * len(known):
        return []
    mine, other = unlike[0]
    return [
        f"{len(unlike)} of {len(known)} prompts have different token counts for candidate and reference "
        f"({mine} and {other} for the first): a server truncates or changes them"
    ]


def _cut_apart(candidate: Sequence[Sample], reference: Sequence[Sample], task: Task) -> list[str]:
    ours, theirs = ({sample.place: sample.cut for sample in side} for side in (candidate, reference))
    more, less = (sum(a[place] and not b.get(place, False) for place in a) for a, b in ((ours, theirs), (theirs, ours)))
    shares = [truncated(side, task) / len(side) for side in (candidate, reference)]
    unlike = min(sign_test(more, less), sign_test(less, more)) <= MOST_LIKELY_BY_CHANCE
    if unlike and abs(shares[0] - shares[1]) > MOST_TRUNCATED_APART:
        return [
            f"{shares[0]:.1%} of the candidate's answers and {shares[1]:.1%} of the reference's were truncated or have "
            "no finish_reason"
        ]
    return []


def _form_apart(candidate: Sequence[Sample], reference: Sequence[Sample], task: Task) -> list[str]:
    """Report correct answers in the wrong format, if the candidate has more of them than the reference."""
    strict, flexible = _filters(task)
    sides = [
        {sample.place: sample.scores for sample in side if sample.scores is not None} for side in (candidate, reference)
    ]
    both = [place for place in sides[0] if place in sides[1]]
    if not both or not all(name in sides[0][both[0]] for name in (strict, flexible)):
        return []
    ours, theirs = ([side[place][flexible] > side[place][strict] for place in both] for side in sides)
    worse = sum(mine and not other for mine, other in zip(ours, theirs, strict=True))
    better = sum(other and not mine for mine, other in zip(ours, theirs, strict=True))
    if worse - better <= MOST_FORM_APART * len(both) or sign_test(worse, better) > MOST_LIKELY_BY_CHANCE:
        return []
    shares = f"{sum(ours) / len(both):.1%} of the candidate's and {sum(theirs) / len(both):.1%} of the reference's"
    return [f"{shares} answers are correct only for flexible-extract: the candidate's answer format broke"]


def truncated(samples: Sequence[Sample], task: Task) -> int:
    """Return the number of truncated answers, or 0 for tasks where truncation is normal."""
    return sum(sample.cut for sample in samples) if task.kind == "generate" and not task.few_tokens else 0


def _of(count: int, samples: Sequence[Sample]) -> str:
    return f"{count} of {len(samples)} answers"
