"""Results of a comparison: by layer, in total, by domain and by document."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halfbyte.compare.intervals import Estimate, ratio

_SHARE = (0.0, 1.0)
_POSITIVE = (0.0, math.inf)


@dataclass(frozen=True, slots=True)
class LayerDifference:
    """Difference of the hidden states after a layer, over all real tokens."""

    layer: int
    relative_error: float  # ||a - b|| / ||a||, all tokens together
    cosine: float  # mean over tokens
    routed_alike: float | None  # share of (token, expert) pairs with the same routing; None without a router


@dataclass(frozen=True, slots=True, eq=False)
class Positions:
    """Sums over the predicted tokens by position in the document; each bin starts at `begin`."""

    begin: NDArray[np.int64]
    tokens: NDArray[np.int64]
    kl: NDArray[np.float64]

    def as_dict(self) -> dict[str, list[float]]:
        """Return the non-empty bins with their mean KL."""
        some = self.tokens > 0
        means = self.kl[some] / self.tokens[some]
        return {"begin": self.begin[some].tolist(), "tokens": self.tokens[some].tolist(), "kl": means.tolist()}


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


@dataclass(frozen=True, slots=True)
class Summary:
    """Results over some documents. KL is KL(first || second) in nats."""

    documents: int
    tokens: int
    kl: Estimate
    top1: Estimate  # top-1 agreement
    perplexity_first: float
    perplexity_second: float
    perplexity_ratio: Estimate  # second over first

    def as_dict(self) -> dict[str, Any]:
        """Return JSON-compatible data."""
        values = {name: getattr(self, name) for name in self.__slots__}
        return {name: value.as_dict() if isinstance(value, Estimate) else value for name, value in values.items()}


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
        perplexity_ratio=Estimate(*(None if part is None else _exp(part) for part in log_ratio)),  # pyright: ignore[reportArgumentType]
    )


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

    def as_dict(self) -> dict[str, Any]:
        """Return JSON-compatible data without the results by document."""
        return {
            "first": self.first,
            "second": self.second,
            "emulated": dict(self.emulated),
            "dtype": self.dtype,
            "device": self.device,
            "rows": list(self.rows),
            "tokens_sha256": self.fingerprint,
            "total": self.total.as_dict(),
            "domains": {name: summary.as_dict() for name, summary in self.domains.items()},
            "layers": [asdict(layer) for layer in self.layers],
            "seconds": self.seconds,
        }

    def plot_data(self) -> dict[str, Any]:
        """Return data for plots: arrays by layer, position and document."""
        documents = self.documents
        return {
            **self.as_dict(),
            "by_layer": {name: [getattr(layer, name) for layer in self.layers] for name in LayerDifference.__slots__},
            "by_position": documents.positions.as_dict() if documents.positions else None,
            "by_document": {
                "document": documents.number.tolist(),
                "domain": [self.names[index] for index in documents.domain],
                "tokens": documents.tokens.tolist(),
                "kl": (documents.kl / documents.tokens).tolist(),
                "top1": (documents.same / documents.tokens).tolist(),
                "nll_first": (documents.nll_first / documents.tokens).tolist(),
                "nll_second": (documents.nll_second / documents.tokens).tolist(),
            },
        }


def kl_ratio(report: Report, baseline: Report) -> Estimate:
    """Return the ratio of the KLs of two reports on the same tokens and source, with an interval paired by document."""
    if report.fingerprint != baseline.fingerprint or report.first != baseline.first:
        raise ValueError("the reports are of different tokens or of different sources")
    return ratio(report.documents.kl, baseline.documents.kl, _POSITIVE)
