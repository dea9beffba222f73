"""How far two servers' predictions of the same text are apart, from the log-probabilities that servers tell.

A server tells the log-probability of each token of a text, and the k likeliest at its place. So

exact       the log-probability of the text's own tokens, on both sides; whether the likeliest token is the same
bounded     the divergence KL(reference || ours): tokens that both name stay apart, all others are one. Putting tokens
            together can only lower a divergence (the log-sum inequality), so what is computed is at most the true one
over top k  the overlap of the named tokens, and the error of their log-probabilities

Only tokens that the reference itself finds plausible are scored. Where a text surprises it (a random code, the words of
a user) its prediction is a guess among thousands, and any other rounding guesses otherwise: there two sound servers
differ by 20 times as much as elsewhere, and a damaged layer does not. So these places add noise and no sign of a fault.

The shape is that of lmdeploy's gate for Kimi-K2.6; its limits are for equal weights on two engines.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

_SMALLEST_MASS = 1e-6  # of all tokens that are not named: below it is rounding
MARGIN = 0.05  # nat between the two likeliest of the reference: with less, either may come first
FAR = 1.0  # nat: quantization does not move a prediction so far; a wrong expert does, and only where it is chosen
PLAUSIBLE = 0.05  # probability at the reference from which a token is scored
_REPLACED = "\ufffd"  # part of a character: several tokens are written alike


@dataclass(frozen=True, slots=True)
class Place:
    """What a server says of one token of a text."""

    token: str
    logprob: float
    top: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Step:
    """The difference at one token."""

    token: str
    ours: float
    theirs: float
    kl: float  # at least
    same_first: bool
    stable: bool  # the reference is sure enough for `same_first` to mean something
    overlap: float
    squares: float  # of errors of log-probabilities, over the tokens that both name
    spread: float  # of the reference's, in the same unit
    named: int

    @property
    def plausible(self) -> bool:
        """Whether the reference expects something like this token."""
        return self.theirs >= math.log(PLAUSIBLE)

    @property
    def error(self) -> float:
        """Return the error of the token's own log-probability."""
        return abs(self.ours - self.theirs)


def read_places(logprobs: Any, *, written: bool = False) -> list[Place] | None:
    """Return what a completion tells of each token: of those that it wrote, or with `echo` of all but the first.

    None where it does not tell.
    """
    told = cast("dict[str, Any]", logprobs or {})
    columns: list[list[Any]] = [told.get(key) or [] for key in ("tokens", "token_logprobs", "top_logprobs")]
    if not all(columns) or len({len(column) for column in columns}) != 1:
        return None
    rows = list(zip(columns[0], columns[1], columns[2], strict=True))[0 if written else 1 :]
    if any(value is None or not top for _, value, top in rows):
        return None
    return [Place(str(token), float(value), {str(k): float(v) for k, v in top.items()}) for token, value, top in rows]


def step(ours: Place, theirs: Place) -> Step:
    """Compare one token."""
    shared = [name for name in theirs.top if name in ours.top and _REPLACED not in name]
    first, ranked = max(theirs.top, key=theirs.top.__getitem__), sorted(theirs.top.values(), reverse=True)
    values = [theirs.top[name] for name in shared]
    middle = math.fsum(values) / len(values) if values else 0.0
    return Step(
        theirs.token,
        ours.logprob,
        theirs.logprob,
        kl_at_least(theirs.top, ours.top, shared),
        first == max(ours.top, key=ours.top.__getitem__),
        len(ranked) > 1 and ranked[0] - ranked[1] >= MARGIN,
        len(set(theirs.top) & set(ours.top)) / max(1, min(len(theirs.top), len(ours.top))),
        math.fsum((ours.top[name] - theirs.top[name]) ** 2 for name in shared),
        math.fsum((value - middle) ** 2 for value in values),
        len(shared),
    )


def kl_at_least(p: Mapping[str, float], q: Mapping[str, float], shared: Sequence[str]) -> float:
    """Return KL(p || q) over the shared tokens and the one made of all others, in nat."""
    named = math.fsum(math.exp(p[name]) * (p[name] - q[name]) for name in shared)
    rest_p = max(_SMALLEST_MASS, 1 - math.fsum(math.exp(p[name]) for name in shared))
    rest_q = max(_SMALLEST_MASS, 1 - math.fsum(math.exp(q[name]) for name in shared))
    return max(0.0, named + rest_p * math.log(rest_p / rest_q))


def summary(steps: Sequence[Step]) -> dict[str, float]:
    """Return the numbers of the report over the plausible tokens, and what they would be over all."""
    everywhere = {"tokens_everywhere": len(steps), "kl_everywhere": _mean([one.kl for one in steps])}
    steps = [one for one in steps if one.plausible]
    stable = [one for one in steps if one.stable]
    errors = sorted(one.error for one in steps)
    kls = sorted(one.kl for one in steps)
    nrmse = sorted(math.sqrt(one.squares / one.spread) for one in steps if one.spread > 0)
    return {
        "tokens": len(steps),
        "kl_at_least": _mean(kls),
        "kl_p95": _at(kls, 0.95),
        "far": _mean([float(one.kl >= FAR) for one in steps]),
        "stable_tokens": len(stable),
        "stable_top1": _mean([float(one.same_first) for one in stable]),
        "top1": _mean([float(one.same_first) for one in steps]),
        "overlap": _mean([one.overlap for one in steps]),
        "nrmse": _mean(nrmse),
        "nrmse_p95": _at(nrmse, 0.95),
        "error_mean": _mean(errors),
        "error_p95": _at(errors, 0.95),
        "error_most": errors[-1] if errors else 0.0,
        "perplexity_ratio": math.exp(_mean([one.theirs - one.ours for one in steps])),
        **everywhere,
    }


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else 0.0


def _at(ordered: Sequence[float], share: float) -> float:
    """Return the value below which that share lies."""
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0
