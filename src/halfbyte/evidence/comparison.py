"""The record of `halfbyte compare`: divergence of a checkpoint's predictions from its source."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from halfbyte.evidence.record import OMIT, MeasuredRecord


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value with its 95 % confidence interval; no interval with too few documents."""

    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True)
class Summary:
    """Results over some documents."""

    documents: int
    tokens: int
    kl: Estimate  # KL(first || second) in nats
    top1: Estimate  # share of tokens with the same most likely token
    perplexity_first: float
    perplexity_second: float
    perplexity_ratio: Estimate  # second over first


@dataclass(frozen=True, slots=True)
class LayerDifference:
    """Difference of the hidden states after a layer, over all tokens."""

    layer: int
    relative_error: float | None  # ||a - b|| / ||a||; None if the reference is zero and the other is not
    cosine: float  # mean over tokens
    routing_agreement: float | None  # share of (token, expert) pairs with the same routing; null without a router
    added_error: float | None = field(default=None, metadata=OMIT)  # of this layer alone, on the source's hidden states


@dataclass(frozen=True, slots=True)
class Positions:
    """Mean KL by position of the predicted token; each bin starts at `start`."""

    start: tuple[int, ...]
    tokens: tuple[int, ...]
    kl: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class DocumentResults:
    """Mean results of each document."""

    document: tuple[int, ...]
    domain: tuple[str, ...]
    tokens: tuple[int, ...]
    kl: tuple[float, ...]
    top1: tuple[float, ...]
    nll_first: tuple[float, ...]
    nll_second: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison(MeasuredRecord):
    """The source (first) and the checkpoint (second) on the same tokens."""

    kind = "compare"
    file = "compare.json"
    created_by = "halfbyte compare SRC {out} --data DOMAIN=FILE -o {out}/halfbyte/compare.json"
    measured = "weights"

    first: str
    second: str
    emulated: Mapping[str, str]  # emulated formats of activations and KV cache
    dtype: str
    device: str
    rows: tuple[int, int]  # number of rows and tokens per row
    tokens_sha256: str
    total: Summary
    domains: Mapping[str, Summary]
    layers: tuple[LayerDifference, ...]
    seconds: float
    scored: str  # which tokens count: all, or those of answers
    planned: str | None = field(default=None, metadata=OMIT)  # fingerprint of the plan, if the second is not written
    by_layer: Mapping[str, tuple[float | None, ...]] | None = None  # the layers as arrays, for plots
    by_position: Positions | None = None
    by_document: DocumentResults | None = None
