"""Results of a comparison: by layer, in total, by domain and by document."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halfbyte.compare.intervals import Estimate, ratio
from halfbyte.evidence import comparison as evidence
from halfbyte.evidence.comparison import LayerDifference, Summary

_SHARE = (0.0, 1.0)
_POSITIVE = (0.0, math.inf)


@dataclass(frozen=True, slots=True, eq=False)
class Positions:
    """Sums over the predicted tokens by position in the document; each bin starts at `begin`."""

    begin: NDArray[np.int64]
    tokens: NDArray[np.int64]
    kl: NDArray[np.float64]

    def means(self) -> evidence.Positions:
        """Return the non-empty bins with their mean KL."""
        some = self.tokens > 0
        columns = (self.begin[some], self.tokens[some], self.kl[some] / self.tokens[some])
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
            **(measured or {}),
        )

    def _domain_indexes(self) -> list[int]:
        return self.documents.domain.tolist()

    def whole_record(self, scored: str, measured: Mapping[str, Any] | None = None) -> evidence.Comparison:
        """Return all results, with arrays by layer, position and document for plots."""
        documents, indexes = self.documents, self._domain_indexes()
        return replace(
            self.record(scored, measured),
            by_layer={
                row.name: tuple(getattr(layer, row.name) for layer in self.layers) for row in fields(LayerDifference)
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
