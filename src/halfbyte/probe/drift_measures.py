"""Compare the predictions of two servers for the same text, using the log-probabilities that they report.

A server reports the log-probability of each token of a text, and of the top-k tokens at its position.

exact       the log-probabilities of the text's own tokens on both sides; top-1 agreement
bounded     the divergence KL(reference || ours): tokens that both report stay separate, all others are merged. Merging
            tokens can only lower a divergence (the log-sum inequality), so the result is a lower bound
over top k  the overlap of the reported tokens, and the error of their log-probabilities

Only tokens that the reference finds plausible are scored. Where a text surprises it (a random code, a user's words),
its prediction is a guess among thousands of tokens that depends on rounding. At such positions two healthy servers
differ 20 times as much as elsewhere, and a damaged layer does not differ more. So they would only add noise.

The metrics follow lmdeploy's gate for Kimi-K2.6, whose limits are for equal weights on two engines.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

_SMALLEST_MASS = 1e-6  # of all tokens that are not reported; less is rounding
MARGIN = 0.05  # nat between the reference's top two tokens; with less, either may be top-1
FAR = 1.0  # nat: quantization does not move a prediction this far; a wrong expert does, but only where it is routed to
PLAUSIBLE = 0.05  # minimum reference probability of a scored token
_REPLACED = "\ufffd"  # part of a character: several tokens have the same text


@dataclass(frozen=True, slots=True)
class Place:
    """A server's prediction at one token of a text."""

    token: str
    logprob: float
    top: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Step:
    """Difference at one token."""

    token: str
    ours: float
    theirs: float
    kl: float  # lower bound
    same_first: bool
    stable: bool  # the reference is certain enough for `same_first` to be meaningful
    overlap: float
    squares: float  # of log-probability errors, over the tokens that both report
    spread: float  # of the reference's log-probabilities, in the same unit
    named: int

    @property
    def plausible(self) -> bool:
        """Whether the reference finds this token plausible."""
        return self.theirs >= math.log(PLAUSIBLE)

    @property
    def error(self) -> float:
        """Return the error of the token's own log-probability."""
        return abs(self.ours - self.theirs)


def read_places(logprobs: Any, *, written: bool = False) -> list[Place] | None:
    """Return the prediction at each token of a completion: the generated tokens, or with `echo` all but the first.

    None if the server does not report them.
    """
    fields = cast("dict[str, Any]", logprobs or {})
    columns: list[list[Any]] = [fields.get(key) or [] for key in ("tokens", "token_logprobs", "top_logprobs")]
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
    mean = math.fsum(values) / len(values) if values else 0.0
    return Step(
        theirs.token,
        ours.logprob,
        theirs.logprob,
        kl_at_least(theirs.top, ours.top, shared),
        first == max(ours.top, key=ours.top.__getitem__),
        len(ranked) > 1 and ranked[0] - ranked[1] >= MARGIN,
        len(set(theirs.top) & set(ours.top)) / max(1, min(len(theirs.top), len(ours.top))),
        math.fsum((ours.top[name] - theirs.top[name]) ** 2 for name in shared),
        math.fsum((value - mean) ** 2 for value in values),
        len(shared),
    )


def kl_at_least(p: Mapping[str, float], q: Mapping[str, float], shared: Sequence[str]) -> float:
    """Return KL(p || q) in nat over the shared tokens, with all other tokens merged into one."""
    named = math.fsum(math.exp(p[name]) * (p[name] - q[name]) for name in shared)
    rest_p = max(_SMALLEST_MASS, 1 - math.fsum(math.exp(p[name]) for name in shared))
    rest_q = max(_SMALLEST_MASS, 1 - math.fsum(math.exp(q[name]) for name in shared))
    return max(0.0, named + rest_p * math.log(rest_p / rest_q))


def summary(steps: Sequence[Step]) -> dict[str, float]:
    """Return the metrics over the plausible tokens, and the main ones over all tokens."""
    everywhere = {"tokens_everywhere": len(steps), "kl_everywhere": _mean([item.kl for item in steps])}
    steps = [item for item in steps if item.plausible]
    stable = [item for item in steps if item.stable]
    errors = sorted(item.error for item in steps)
    kls = sorted(item.kl for item in steps)
    nrmse = sorted(math.sqrt(item.squares / item.spread) for item in steps if item.spread > 0)
    return {
        "tokens": len(steps),
        "kl_at_least": _mean(kls),
        "kl_p95": _quantile(kls, 0.95),
        "far": _mean([float(item.kl >= FAR) for item in steps]),
        "stable_tokens": len(stable),
        "stable_top1": _mean([float(item.same_first) for item in stable]),
        "top1": _mean([float(item.same_first) for item in steps]),
        "overlap": _mean([item.overlap for item in steps]),
        "nrmse": _mean(nrmse),
        "nrmse_p95": _quantile(nrmse, 0.95),
        "error_mean": _mean(errors),
        "error_p95": _quantile(errors, 0.95),
        "error_most": errors[-1] if errors else 0.0,
        "perplexity_ratio": math.exp(_mean([item.theirs - item.ours for item in steps])),
        **everywhere,
    }


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else 0.0


def _quantile(ordered: Sequence[float], share: float) -> float:
    """Return a quantile of sorted values."""
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0
