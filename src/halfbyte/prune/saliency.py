"""How much an expert matters, by any of the known criteria, from the same additive sums.

g is the model's own router weight of a token (sigmoid, bias and renormalisation as the model has them), n the L2 norm
of the expert's output before that weight. A mean is over the real tokens that the expert was given.

reap          mean of g n       the formula of the REAP paper
reap_softmax  mean of p n       p is the softmax of the router's logits, renormalised over the experts that were chosen
reap_public   mean of p n       the public REAP code: that softmax over the experts that the raw logits would choose
reap_g2       mean of g^2 n
reap_l2       mean of (g n)^2
frequency     number of tokens
ean           sum of n          expert activation norm
weighted_ean  sum of g n        what a domain's tokens were given by the expert, in all
man, msan     mean of n, of n^2

Domains are blended before anything is divided: each token counts with the weight of its domain, so that a mean is
sum_d w_d sum_d(g n) / sum_d w_d count_d. Without weights all tokens count alike, and a domain with more tokens says
more. An expert without tokens has the score 0, as in the public code; who is too little observed to be judged at all
is another question, see `Scores.observed`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from halfbyte.calibrate.stats import ExpertStats, LayerStats
from halfbyte.errors import UsageError
from halfbyte.prune.router import RouterShape
from halfbyte.recipe.decisions import Prune, PruneMethod

Values = NDArray[np.float64]
_COUNT, _COUNT_PUBLIC = "count", "count_public"


@dataclass(frozen=True, slots=True)
class Criterion:
    """The sum that rates an expert, whether it is divided by the number of tokens, and which number that is."""

    sum: str
    mean: bool
    tokens: str = _COUNT


CRITERIA: Mapping[PruneMethod, Criterion] = {
    "reap": Criterion("gn", mean=True),
    "reap_softmax": Criterion("pn", mean=True),
    "reap_public": Criterion("pn_public", mean=True, tokens=_COUNT_PUBLIC),
    "reap_g2": Criterion("g2n", mean=True),
    "reap_l2": Criterion("g2n2", mean=True),
    "frequency": Criterion(_COUNT, mean=False),
    "ean": Criterion("n", mean=False),
    "weighted_ean": Criterion("gn", mean=False),
    "man": Criterion("n", mean=True),
    "msan": Criterion("n2", mean=True),
}


@dataclass(frozen=True, slots=True, eq=False)
class Scores:
    """Of the E experts of a layer, by one criterion."""

    blended: Values  # [E]
    by_domain: Values  # [E, B]: by the tokens of one domain alone
    mass: Values  # [E, B]: the sum of g n, by which domains are reported whatever the criterion
    observed: NDArray[np.bool_]  # [E]: had as many tokens as the rule asks for, in domains that weigh anything


def layer_scores(layer: int, stats: LayerStats, domains: Sequence[str], rule: Prune, router: RouterShape) -> Scores:
    """Rate the experts of a layer; UsageError for statistics that cannot rate them."""
    experts = _experts(layer, stats, domains, router)
    criterion = CRITERIA[rule.method]
    top = _array(layer, experts, criterion.sum, rule.method)
    tokens = _array(layer, experts, criterion.tokens, rule.method)
    weights = _weights(domains, rule.blend)
    blended, blended_tokens = _weighted(top, weights), _weighted(tokens, weights)
    seen = _weighted(tokens, [float(weight > 0) for weight in weights])
    return Scores(
        blended=_ratio(blended, blended_tokens) if criterion.mean else blended,
        by_domain=_ratio(top, tokens) if criterion.mean else top,
        mass=_array(layer, experts, "gn", rule.method),
        observed=seen >= rule.min_tokens,
    )


def _experts(layer: int, stats: LayerStats, domains: Sequence[str], router: RouterShape) -> ExpertStats:
    if stats.experts is None:
        what = "these statistics have nothing of the experts of a layer that has some"
        raise UsageError(what, where=f"layer {layer}", fix="give statistics of this checkpoint: halfbyte calibrate")
    shape = router.experts, len(domains)
    if stats.experts.count.shape != shape:
        found = " experts in ".join(map(str, stats.experts.count.shape))
        what = f"these statistics are of another model: they have {found} domains, not {shape[0]} in {shape[1]}"
        raise UsageError(what, where=f"layer {layer}", fix="give statistics of this checkpoint: halfbyte calibrate")
    return stats.experts


def _array(layer: int, experts: ExpertStats, name: str, method: str) -> Values:
    counts = {_COUNT: experts.count, _COUNT_PUBLIC: experts.count_public}
    found = counts[name] if name in counts else experts.sums.get(name)
    if found is None:
        what = f"'{method}' needs the sum '{name}', which these statistics do not have"
        again = " --set calibrate.public_reap=true" if name.endswith("_public") else " with this version"
        fix = f"measure again (halfbyte calibrate{again}), or choose another --method, such as reap"
        raise UsageError(what, where=f"layer {layer}", fix=fix)
    values = found.astype(np.float64)
    check_possible(layer, values, f"sum of {name}")
    return values


def check_possible(layer: int, values: NDArray[np.floating], name: str) -> None:
    """Refuse NaN, infinity and negative numbers: a sort would put them anywhere, and nobody would notice."""
    bad = np.argwhere(~(np.isfinite(values) & (values >= 0)))
    if len(bad):
        value = values[tuple(bad[0])]
        what = f"the statistics of an expert are impossible: its {name} is {value}"
        raise UsageError(what, where=f"layer {layer}, expert {bad[0][0]}", fix="measure again: halfbyte calibrate")


def _weights(domains: Sequence[str], blend: Mapping[str, float] | None) -> list[float]:
    if blend is None:
        return [1.0] * len(domains)
    unknown = [domain for domain in blend if domain not in domains]
    missing = [domain for domain in domains if domain not in blend]
    if unknown or missing:
        what = f"the statistics have no domain '{unknown[0]}'" if unknown else f"'blend' does not weigh '{missing[0]}'"
        raise UsageError(what, where="prune.blend", fix=f"weigh each domain of the statistics: {', '.join(domains)}")
    return [float(blend[domain]) for domain in domains]


def _weighted(values: Values, weights: Sequence[float]) -> Values:
    """Add domains in their order: on any machine, the same bits."""
    total = np.zeros(len(values))
    for domain, weight in enumerate(weights):
        total = total + weight * values[:, domain]
    return total


def _ratio(top: Values, bottom: Values) -> Values:
    return np.divide(top, bottom, out=np.zeros_like(top), where=bottom > 0)
