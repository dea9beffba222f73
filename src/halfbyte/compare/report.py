"""Results of a comparison: by layer, in total, by domain and by document, with confidence intervals."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halfbyte.evidence import comparison as evidence
from halfbyte.evidence.comparison import Estimate, LayerDifference, Summary

_SHARE = (0.0, 1.0)
_POSITIVE = (0.0, math.inf)


@dataclass(frozen=True, slots=True, eq=False)
class Positions:
    """Sums over the predicted tokens by position in the document; each bin starts at `start`."""

    start: NDArray[np.int64]
    tokens: NDArray[np.int64]
    kl: NDArray[np.float64]

    def means(self) -> evidence.Positions:
        """Return the non-empty bins with their mean KL."""
        some = self.tokens > 0
        columns = (self.start[some], self.tokens[some], self.kl[some] / self.tokens[some])
        return evidence.Positions(*(tuple(column.tolist()) for column in columns))


@dataclass(frozen=True, slots=True, eq=False)
class Documents:
    """Sums over the predicted tokens of each document, from which all results are computed."""

    number: NDArray[np.int64]
    domain: NDArray[np.int64]  # index into the names of the domains
    tokens: NDArray[np.int64]
    kl: NDArray[np.float64]
    same: NDArray[np.float64]  # tokens with top-1 agreement
    nll_first: NDArray[np.float64]
    nll_second: NDArray[np.float64]
    positions: Positions | None = None  # of all documents together

    def of_domain(self, domain: int) -> Documents:
        """Return the documents of one domain."""
        selected = self.domain == domain
        return Documents(*(getattr(self, name)[selected] for name in self.__slots__ if name != "positions"))


def summarize(documents: Documents) -> Summary:
    """Return the results over some documents."""
    log_ratio = ratio(documents.nll_second - documents.nll_first, documents.tokens)
    return Summary(
        documents=len(documents.number),
        tokens=int(documents.tokens.sum()),
        kl=ratio(documents.kl, documents.tokens, _POSITIVE),
        top1=ratio(documents.same, documents.tokens, _SHARE),
        perplexity_first=_exp(ratio(documents.nll_first, documents.tokens).value),
        perplexity_second=_exp(ratio(documents.nll_second, documents.tokens).value),
        perplexity_ratio=Estimate(_exp(log_ratio.value), _exp_or_none(log_ratio.low), _exp_or_none(log_ratio.high)),
    )


def _exp_or_none(value: float | None) -> float | None:
    return None if value is None else _exp(value)


def _exp(value: float) -> float:
    return math.exp(min(value, 700.0))  # stays finite for useless models


@dataclass(frozen=True, slots=True, eq=False)
class Report:
    """One model against another on the same tokens."""

    first: str
    second: str
    emulated: Mapping[str, str]  # emulated activations and KV cache of the second
    dtype: str
    device: str  # TF32 is off on all devices
    layers: tuple[LayerDifference, ...]
    documents: Documents
    names: tuple[str, ...]  # of the domains
    total: Summary
    domains: Mapping[str, Summary]
    rows: tuple[int, int]
    fingerprint: str  # of the tokens
    seconds: float
    planned: str | None = None  # fingerprint of the plan, if the second is not written

    def record(self, scored: str, measured: Mapping[str, Any] | None = None) -> evidence.Comparison:
        """Return the results without those by position and document."""
        return evidence.Comparison(
            first=self.first,
            second=self.second,
            emulated=dict(self.emulated),
            dtype=self.dtype,
            device=self.device,
            rows=self.rows,
            tokens_sha256=self.fingerprint,
            total=self.total,
            domains=self.domains,
            layers=self.layers,
            seconds=self.seconds,
            scored=scored,
            planned=self.planned,
            **(measured or {}),
        )

    def by_added_error(self) -> list[LayerDifference]:
        """Return the layers, largest added error first; none if it was not measured."""
        rated = [layer for layer in self.layers if layer.added_error is not None]
        return sorted(rated, key=lambda layer: -(layer.added_error or 0.0))

    def _domain_indexes(self) -> list[int]:
        return self.documents.domain.tolist()

    def whole_record(self, scored: str, measured: Mapping[str, Any] | None = None) -> evidence.Comparison:
        """Return all results, with arrays by layer, position and document for plots."""
        documents, indexes = self.documents, self._domain_indexes()
        return replace(
            self.record(scored, measured),
            by_layer={
                row.name: tuple(getattr(layer, row.name) for layer in self.layers)
                for row in fields(LayerDifference)
                if row.name != "added_error" or self.by_added_error()
            },
            by_position=documents.positions.means() if documents.positions else None,
            by_document=evidence.DocumentResults(
                document=tuple(documents.number.tolist()),
                domain=tuple(self.names[index] for index in indexes),
                tokens=tuple(documents.tokens.tolist()),
                kl=tuple((documents.kl / documents.tokens).tolist()),
                top1=tuple((documents.same / documents.tokens).tolist()),
                nll_first=tuple((documents.nll_first / documents.tokens).tolist()),
                nll_second=tuple((documents.nll_second / documents.tokens).tolist()),
            ),
        )


def kl_ratio(report: Report, baseline: Report) -> Estimate:
    """Return the ratio of the KLs of two reports on the same tokens and source, with an interval paired by document."""
    if report.fingerprint != baseline.fingerprint or report.first != baseline.first:
        raise ValueError("the reports are of different tokens or of different sources")
    return ratio(report.documents.kl, baseline.documents.kl, _POSITIVE)


# Confidence intervals of means over tokens, from a studentized bootstrap over documents.
#
# Tokens of one document are correlated, so an interval over tokens would be far too narrow. The bootstrap resamples
# whole documents, and each resample is divided by its own standard error. KL has a long tail: in simulations with 20
# long-tailed documents, the percentile interval and Student's t cover the mean in 83 % of cases, this interval in 91
# %. If only a few documents differ at all (a top-1 agreement of 98 %), 50 documents are needed for 95 %.

Sums = NDArray[Any]  # [D], one per document

CONFIDENCE = 0.95
FEWEST = 10  # documents needed for an interval
RESAMPLES = 2000
SEED = 20260801
_LEAST_SPREAD = 0.1  # lower bound relative to the sample's: resamples of nearly equal documents would be extreme
_AT_ONCE = 1 << 22  # resampling weights in memory


def ratio(above: Sums, below: Sums, limits: tuple[float, float] = (-math.inf, math.inf)) -> Estimate:
    """Estimate sum(above) / sum(below) from sums by document: a mean over tokens if `below` counts tokens.

    The interval is clipped to `limits`, the possible range of the value.
    """
    above, below = np.asarray(above, np.float64), np.asarray(below, np.float64)
    count = len(above)
    if not count or not below.sum():
        return Estimate(math.nan)
    value = float(above.sum() / below.sum())
    if count < FEWEST:
        return Estimate(value)
    spread = float(_spread(np.ones((1, count)), above, below, np.array([value]))[0])
    if spread == 0:  # all documents agree
        return Estimate(value, value, value)
    low, high = np.quantile(_studentized(above, below, value, spread), [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return Estimate(value, max(limits[0], value - float(high) * spread), min(limits[1], value - float(low) * spread))


def _studentized(above: Sums, below: Sums, value: float, spread: float) -> NDArray[np.float64]:
    """Return the deviation of each resample from the sample, in units of its own standard error."""
    random, count = np.random.default_rng(SEED), len(above)
    deviations: list[NDArray[np.float64]] = []
    step = max(1, _AT_ONCE // count)
    for start in range(0, RESAMPLES, step):
        size = min(step, RESAMPLES - start)
        weights = random.multinomial(count, np.full(count, 1 / count), size).astype(np.float64)
        weights = weights[weights @ below > 0]
        values = (weights @ above) / (weights @ below)
        own = _spread(weights, above, below, values)
        deviations.append((values - value) / np.maximum(own, _LEAST_SPREAD * spread))
    return np.concatenate(deviations)


def _spread(weights: NDArray[np.float64], above: Sums, below: Sums, values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the standard error of the ratio in each resample from the documents' residuals."""
    residuals = above[None, :] - values[:, None] * below[None, :]
    count = len(above)
    return np.sqrt((weights * residuals**2).sum(axis=1) * count / (count - 1)) / (weights @ below)
