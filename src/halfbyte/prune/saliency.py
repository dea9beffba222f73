"""Score experts by any of the known saliency criteria, from the same additive sums, and detect super experts.

g is the model's router weight for a token (with the model's sigmoid, bias and renormalization), n the L2 norm of the
expert's output before that weight. A mean is over the real tokens routed to the expert.

reap          mean of g n       the formula of the REAP paper
reap_softmax  mean of p n       p is the softmax of the router logits, renormalized over the selected experts
reap_public   mean of p n       the public REAP code: that softmax over the experts with the largest raw logits
reap_g2       mean of g^2 n
reap_l2       mean of (g n)^2
frequency     number of tokens
ean           sum of n          expert activation norm
weighted_ean  sum of g n        total expert output on a domain's tokens
man, msan     mean of n, of n^2

Domains are blended before division: each token counts with the weight of its domain, so that a mean is
sum_d w_d sum_d(g n) / sum_d w_d count_d. Without weights all tokens count equally, so a domain with more tokens counts
more. An expert without tokens has the score 0, as in the public code; `Scores.observed` tells whether an expert had
enough tokens to be scored.

Super experts are kept regardless of their score. A few experts write outputs hundreds of times larger than all others,
and attention sinks depend on them. Models that lose one repeat themselves (Super Experts, arXiv 2507.23279), and a mean
over tokens may not show them. They are detected by the largest absolute value of their output, by one of two rules:

- Across layers, if the statistics of all layers are available: above the 99.5th percentile of all experts of all
  layers, and above a tenth of the largest. This is the rule of the paper and of the public REAP code, except that it
  uses absolute values, identifies experts by their layer's own number, and includes every layer. The public code
  excludes the last quarter of the layers, where large outputs are common. They are included here: the percentile
  protects at most one expert in 200, each replaces an expert that barely made the cut, and dropping one that matters
  breaks the model.
- Within one layer, if experts are dropped before later layers are measured: above ten times the layer's median, and
  above a tenth of its largest. A percentile within one layer would always select some expert; a multiple of the median
  selects none if there are no outliers.

Experts without a measured output count in neither percentile nor median.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from halfbyte.calibrate.stats import ExpertStats, LayerStats
from halfbyte.errors import UsageError
from halfbyte.plan.pruned import RouterShape
from halfbyte.recipe.decisions import Prune, PruneMethod

Values = NDArray[np.float64]
_COUNT, _COUNT_PUBLIC = "count", "count_public"

PERCENTILE = 99.5
OF_LARGEST = 0.1
OF_MEDIAN = 10.0


@dataclass(frozen=True, slots=True)
class Criterion:
    """The sum used as a score, whether it is divided by a token count, and by which one."""

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
    """Scores of a layer's E experts by one criterion."""

    blended: Values  # [E]
    by_domain: Values  # [E, B]: on the tokens of one domain alone
    mass: Values  # [E, B]: the sum of g n, used in domain reports for every criterion
    observed: NDArray[np.bool_]  # [E]: had at least `min_tokens` tokens in domains with a positive weight


def layer_scores(layer: int, stats: LayerStats, domains: Sequence[str], rule: Prune, router: RouterShape) -> Scores:
    """Score the experts of a layer; UsageError if the statistics are insufficient."""
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
        what = "the statistics have no expert data for this MoE layer"
        raise UsageError(what, where=f"layer {layer}", fix="pass statistics of this checkpoint from halfbyte calibrate")
    shape = router.experts, len(domains)
    if stats.experts.count.shape != shape:
        actual = " experts in ".join(map(str, stats.experts.count.shape))
        what = f"the statistics are for another model: {actual} domains, not {shape[0]} in {shape[1]}"
        raise UsageError(what, where=f"layer {layer}", fix="pass statistics of this checkpoint from halfbyte calibrate")
    return stats.experts


def _array(layer: int, experts: ExpertStats, name: str, method: str) -> Values:
    counts = {_COUNT: experts.count, _COUNT_PUBLIC: experts.count_public}
    array = counts[name] if name in counts else experts.sums.get(name)
    if array is None:
        what = f"'{method}' needs the sum '{name}', which the statistics do not have"
        again = " --set calibrate.public_reap=true" if name.endswith("_public") else " with this version"
        fix = f"run halfbyte calibrate{again}, or choose another --method, such as reap"
        raise UsageError(what, where=f"layer {layer}", fix=fix)
    values = array.astype(np.float64)
    check_possible(layer, values, f"sum of {name}")
    return values


def check_possible(layer: int, values: NDArray[np.floating], name: str) -> None:
    """Raise on NaN, infinity and negative numbers, which would sort arbitrarily."""
    bad = np.argwhere(~(np.isfinite(values) & (values >= 0)))
    if len(bad):
        value = values[tuple(bad[0])]
        what = f"invalid expert statistics: the {name} is {value}"
        raise UsageError(what, where=f"layer {layer}, expert {bad[0][0]}", fix="measure again with halfbyte calibrate")


def _weights(domains: Sequence[str], blend: Mapping[str, float] | None) -> list[float]:
    if blend is None:
        return [1.0] * len(domains)
    unknown = [domain for domain in blend if domain not in domains]
    missing = [domain for domain in domains if domain not in blend]
    if unknown or missing:
        what = f"the statistics have no domain '{unknown[0]}'" if unknown else f"'blend' lacks '{missing[0]}'"
        raise UsageError(what, where="prune.blend", fix=f"give each domain a weight: {', '.join(domains)}")
    return [float(blend[domain]) for domain in domains]


def _weighted(values: Values, weights: Sequence[float]) -> Values:
    """Add domains in order: bit-identical on any machine."""
    total = np.zeros(len(values))
    for domain, weight in enumerate(weights):
        total = total + weight * values[:, domain]
    return total


def _ratio(top: Values, bottom: Values) -> Values:
    return np.divide(top, bottom, out=np.zeros_like(top), where=bottom > 0)


def super_experts(layers: Mapping[int, ExpertStats]) -> dict[int, tuple[int, ...]]:
    """Return the super experts of each layer, judged across all layers; layers without any are omitted."""
    largest = {layer: _largest(layer, stats) for layer, stats in sorted(layers.items())}
    outputs = np.concatenate([values[values > 0] for values in largest.values()]) if largest else np.zeros(0)
    if not len(outputs):
        return {}
    least = max(float(np.percentile(outputs, PERCENTILE)), OF_LARGEST * float(outputs.max()))
    by_layer = {layer: _above(values, least) for layer, values in largest.items()}
    return {layer: experts for layer, experts in by_layer.items() if experts}


def super_experts_of_layer(layer: int, stats: ExpertStats) -> tuple[int, ...]:
    """Return the super experts of one layer, judged within the layer."""
    values = _largest(layer, stats)
    measured = values[values > 0]
    if not len(measured):
        return ()
    return _above(values, max(OF_MEDIAN * float(np.median(measured)), OF_LARGEST * float(measured.max())))


def _largest(layer: int, stats: ExpertStats) -> NDArray[np.float64]:
    check_possible(layer, stats.out_amax, "largest output")
    return stats.out_amax.astype(np.float64)


def _above(values: NDArray[np.float64], least: float) -> tuple[int, ...]:
    return tuple(int(expert) for expert in np.flatnonzero(values > least))
