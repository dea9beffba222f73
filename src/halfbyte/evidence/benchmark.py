"""The record of `halfbyte bench`: speed of one or two servers under load."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from halfbyte.evidence.record import MeasuredRecord

Interval = tuple[float, float]
Spread = Mapping[str, float] | None  # p50, p90, p99 and mean, in seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class BootTime:
    """One start of an engine by `halfbyte serve`."""

    url: str
    seconds: float
    cached: float | None  # share of the checkpoint in the page cache before the start
    kind: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchServer:
    """Facts about a server."""

    url: str
    model: str
    root: str  # the folder it serves
    context: int | None  # tokens
    version: str
    device: str  # gpu, cpu or unknown
    emulated: bool  # whether it emulates its number format
    local: bool
    kv_tokens: int | None
    started: float | None
    settings: Mapping[str, str]
    boot: BootTime | None
    no_claim_because: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadPoint:
    """A load: prompt and output tokens of a request, concurrent requests, and the kind of prompt."""

    prompt: int
    output: int
    concurrency: int
    content: str
    chat: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerCounters:
    """Counters of the engine over all blocks; null if it does not report them."""

    prefix_queries: float | None
    prefix_hits: float | None
    draft_tokens: float | None
    accepted_tokens: float | None
    preemptions: float | None
    generated_tokens: float | None
    prefix_hit_share: float | None
    draft_acceptance: float | None
    kv_use_peak: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchPoint:
    """One server at one load. A rate without responses is null, never 0."""

    arm: str  # A or B
    point: LoadPoint
    blocks: int
    requests: int
    failed: int
    errors: Mapping[str, int]
    requests_per_second: float | None
    tokens_per_second: float | None  # output tokens of all users
    steady_tokens_per_second: float | None
    tokens_per_second_per_user: float | None
    prefill_tokens_per_second: float | None
    ttft: Spread  # time to first token
    itl: Spread  # inter-token latency
    tpot: Spread  # time per output token
    e2e: Spread
    goodput_per_second: float | None
    goodput_share: float | None
    drift: float | None
    client_cpu_share: float  # of a core, used by the load generator
    server: ServerCounters
    gpus: Mapping[str, Any] | None  # mean power, use and memory
    doubt: str
    error_rate: float
    no_claim_because: str
    label: str  # the point in words

    @property
    def watts(self) -> float | None:
        """The mean power of the GPUs."""
        watts = (self.gpus or {}).get("watts")
        return watts if isinstance(watts, (int, float)) and not isinstance(watts, bool) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedRatio:
    """A's throughput over B's."""

    design: str
    ratio: float
    interval: Interval | None
    bootstrap: Interval | None
    units: tuple[int, int]  # blocks or server starts of each arm
    drift: float | None
    drift_p: float | None
    no_claim_because: str  # why there is no headline
    confidence: float
    drift_significant: bool
    headline: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PointRatio:
    """One ratio at one point, with its own interval and with the simultaneous interval of all ratios."""

    point: str
    measure: str
    individual: SpeedRatio
    simultaneous: SpeedRatio
    sentence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EqualTpotRatio:
    """The throughput ratio of one shape at equal time per output token."""

    shape: str
    tpot: float | None
    speedup: SpeedRatio | None
    sentence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Benchmark(MeasuredRecord):
    """All points of a sweep, the ratios of two servers, and the claims that hold."""

    kind = "bench"
    file = "bench/bench.json"
    created_by = "halfbyte bench URL -o {out}/halfbyte/bench"
    measured = "server"

    servers: Mapping[str, BenchServer]  # by arm
    differences: tuple[str, ...]  # between the servers, besides the checkpoint
    same_server: bool
    design: Literal["abba", "sequential"]
    no_claim_because: str
    slo: Mapping[str, float]
    points: tuple[BenchPoint, ...]
    comparisons: tuple[PointRatio, ...]
    not_compared: tuple[str, ...]
    equal_tpot: tuple[EqualTpotRatio, ...]
    headlines: tuple[str, ...]
    roofline: tuple[Mapping[str, Any], ...]
    roofline_missing: str
