"""Scores that are none: a suite at chance, empty, cut, looping or equal answers, a parser that finds nothing, errors.

Such a task is ANOMALOUS: its figures are shown, and nothing is concluded from them. Each limit is a share of items.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from halfbyte.validate.evaluate.samples import Sample
from halfbyte.validate.evaluate.suites import Task
from halfbyte.validate.probe.degeneracy.watch import find_loop
from halfbyte.validate.statistics.proportions import sign_test, wilson

MOST_ERRORS = 0.005
MOST_EMPTY = 0.05
MOST_TRUNCATED = 0.05
MOST_TRUNCATED_APART = 0.01  # the two sides: answers that are cut are wrong, whatever the model knows
MOST_LIKELY_BY_CHANCE = 0.05
MOST_UNPARSED = 0.20
MOST_REFUSED = 0.05
MOST_LOOPING = 0.05
MOST_STRICT_GAP = 0.20  # the looser filter finds the answer, the strict one does not: the form broke, not the model
MOST_FORM_APART = 0.05  # the two sides: of that by which one keeps the form more often
MOST_OTHER_PROMPTS = 0.005
MOST_ALIKE = 0.5
MOST_ONE_CHOICE = 0.9
ENOUGH = 20  # items; below that a share says little
INVALID = "[invalid]"  # what lm-eval's filters give where they find nothing
_LETTER = re.compile(r"\W*[A-Za-z]\W*")  # the score ignores marks and capitals
_REFUSAL = re.compile(
    r"\s*(i['\u2019]?m sorry|i am sorry|sorry,|i can(no|['\u2019])t|i am unable|as an ai)", re.IGNORECASE
)


def anomalies(samples: Sequence[Sample], task: Task) -> list[str]:
    """Return what makes the items of one side no score; nothing if they are one."""
    answered = [one for one in samples if one.error is None]
    found: list[str] = []
    errors = len(samples) - len(answered)
    if errors > MOST_ERRORS * len(samples):
        last = next(one.error for one in samples if one.error is not None)
        found.append(f"{_of(errors, samples)} got no answer ({last})")
    if not answered:
        return found
    if task.kind == "generate":
        found += _of_texts(answered, task)
    else:
        found += _of_choices(answered)
    return found + _of_scores(answered, task)


def _of_texts(samples: Sequence[Sample], task: Task) -> list[str]:
    found: list[str] = []
    empty = sum(not one.text.strip() for one in samples)
    null = sum(one.null for one in samples)
    if empty > MOST_EMPTY * len(samples):
        found.append(f"{_of(empty, samples)} are empty, {null} of them without any content from the server")
    if truncated(samples, task) > MOST_TRUNCATED * len(samples):
        found.append(_ended(samples))
    looping = sum(find_loop(one.text) is not None for one in samples)
    if looping > MOST_LOOPING * len(samples):
        found.append(f"{_of(looping, samples)} repeat themselves without end")
    refused = sum(bool(_REFUSAL.match(one.text)) for one in samples)
    if refused > MOST_REFUSED * len(samples):
        found.append(f"{_of(refused, samples)} refuse to answer")
    text, count = Counter(one.text for one in samples).most_common(1)[0]
    right = sum(one.target.strip() == text.strip() for one in samples)
    most = (MOST_ONE_CHOICE if task.short_answer else MOST_ALIKE) * len(samples)
    if len(samples) >= ENOUGH and count > most and text.strip() and right <= MOST_ALIKE * len(samples):
        found.append(f"{_of(count, samples)} are the same text: {text[:40]!r}")
    chosen = task.primary.split(",", 1)[1]
    unparsed = sum(_nothing_taken(one.taken.get(chosen), task) for one in samples)
    if unparsed > MOST_UNPARSED * len(samples):
        found.append(f"{_of(unparsed, samples)} have nothing that the filter {chosen} can take")
    return found


def _ended(samples: Sequence[Sample]) -> str:
    """Say how the answers ended that the model did not end."""
    reasons = Counter(one.finish_reason for one in samples if one.cut)
    parts: list[str] = []
    if reasons["length"]:
        parts.append(f"{_of(reasons.pop('length'), samples)} were cut at the limit of tokens (finish_reason length)")
    if None in reasons:
        parts.append(f"{_of(reasons.pop(None), samples)} have no finish_reason, so cut ones cannot be seen")
    parts += [f"{_of(count, samples)} ended with finish_reason {reason}" for reason, count in reasons.items() if count]
    return ", ".join(parts)


def _nothing_taken(taken: object, task: Task) -> bool:
    """Whether the filter found nothing; one that takes any text has found nothing where it is no letter."""
    return taken == INVALID or (task.short_answer and not _LETTER.fullmatch(str(taken)))


def _of_choices(samples: Sequence[Sample]) -> list[str]:
    picks = Counter(_best(one) for one in samples)
    choice, count = picks.most_common(1)[0]
    right = sum(one.target == str(choice) for one in samples)  # the first items of a set may all have one answer
    if len(samples) >= ENOUGH and count > MOST_ONE_CHOICE * len(samples) and right <= MOST_ALIKE * len(samples):
        return [f"{_of(count, samples)} chose the same place, number {choice + 1}"]
    equal = sum(len({answer[0] for answer in one.output}) == 1 for one in samples)
    return [f"{_of(equal, samples)} have equal likelihoods for every choice"] if equal > len(samples) / 2 else []


def _best(sample: Sample) -> int:
    values = [answer[0] for answer in sample.output]
    return values.index(max(values))


def _of_scores(samples: Sequence[Sample], task: Task) -> list[str]:
    found: list[str] = []
    right = sum((one.scores or {})[task.primary] for one in samples)
    low, _ = wilson(right, len(samples))
    if task.chance and low <= task.chance < right / len(samples) and len(samples) < ENOUGH:
        found.append(f"{len(samples)} are too few items to be above chance, {task.chance:.0%}")
    elif task.chance and low <= task.chance:
        found.append(f"{right / len(samples):.1%} is not above chance, {task.chance:.0%}")
    elif not right:
        found.append("no answer is right")
    strict, flexible = _filters(task)
    if all(name in (samples[0].scores or {}) for name in (strict, flexible)):
        narrow, wide = (sum((one.scores or {})[name] for one in samples) for name in (strict, flexible))
        if wide - narrow > MOST_STRICT_GAP * len(samples):
            shares = f"strict-match has {narrow / len(samples):.1%}, flexible-extract {wide / len(samples):.1%}"
            found.append(f"{shares}: the form broke")
    return found


def _filters(task: Task) -> tuple[str, str]:
    """The names of the two scores of one answer: in the form that was shown, and in any."""
    metric = task.primary.split(",", 1)[0]
    return f"{metric},strict-match", f"{metric},flexible-extract"


def between(candidate: Sequence[Sample], reference: Sequence[Sample], task: Task) -> list[str]:
    """Return what makes two sides incomparable although each is a score."""
    found = _other_prompts(candidate, reference)
    if task.kind == "generate" and not task.few_tokens:
        found += _cut_apart(candidate, reference, task)
    return found + _form_apart(candidate, reference, task)


def _other_prompts(candidate: Sequence[Sample], reference: Sequence[Sample]) -> list[str]:
    """The same text in another number of tokens: a server cuts prompts that are long to it, or adds to them."""
    theirs = {one.place: one.prompt_tokens for one in reference}
    counts = [(one.prompt_tokens, theirs.get(one.place)) for one in candidate]
    known = [(mine, other) for mine, other in counts if mine is not None and other is not None]
    unlike = [(mine, other) for mine, other in known if mine != other]
    if len(unlike) <= MOST_OTHER_PROMPTS * len(known):
        return []
    mine, other = unlike[0]
    return [
        f"{len(unlike)} of {len(known)} prompts have another number of tokens for the candidate than for the reference "
        f"({mine} and {other} for the first): a server cuts or changes them"
    ]


def _cut_apart(candidate: Sequence[Sample], reference: Sequence[Sample], task: Task) -> list[str]:
    ours, theirs = ({one.place: one.cut for one in side} for side in (candidate, reference))
    more, less = (sum(a[place] and not b.get(place, False) for place in a) for a, b in ((ours, theirs), (theirs, ours)))
    shares = [truncated(side, task) / len(side) for side in (candidate, reference)]
    unlike = min(sign_test(more, less), sign_test(less, more)) <= MOST_LIKELY_BY_CHANCE
    if unlike and abs(shares[0] - shares[1]) > MOST_TRUNCATED_APART:
        return [
            f"{shares[0]:.1%} of the candidate's answers were cut, or do not say how they ended, and {shares[1]:.1%} "
            "of the reference's"
        ]
    return []


def _form_apart(candidate: Sequence[Sample], reference: Sequence[Sample], task: Task) -> list[str]:
    """Right answers whose form only the candidate does not keep: no loss of what decides, but a changed model."""
    strict, flexible = _filters(task)
    sides = [{one.place: one.scores for one in side if one.scores is not None} for side in (candidate, reference)]
    both = [place for place in sides[0] if place in sides[1]]
    if not both or not all(name in sides[0][both[0]] for name in (strict, flexible)):
        return []
    ours, theirs = ([side[place][flexible] > side[place][strict] for place in both] for side in sides)
    worse = sum(mine and not other for mine, other in zip(ours, theirs, strict=True))
    better = sum(other and not mine for mine, other in zip(ours, theirs, strict=True))
    if worse - better <= MOST_FORM_APART * len(both) or sign_test(worse, better) > MOST_LIKELY_BY_CHANCE:
        return []
    shares = f"{sum(ours) / len(both):.1%} of the candidate's and {sum(theirs) / len(both):.1%} of the reference's"
    return [f"{shares} answers are right for flexible-extract only: the candidate's form broke"]


def truncated(samples: Sequence[Sample], task: Task) -> int:
    """Return how many answers the model did not end itself, where that is not the rule."""
    return sum(one.cut for one in samples) if task.kind == "generate" and not task.few_tokens else 0


def _of(count: int, samples: Sequence[Sample]) -> str:
    return f"{count} of {len(samples)} answers"
