"""The record of `halfbyte bench`: speed of one or two servers under load."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from halfbyte.evidence.record import MeasuredRecord
from halfbyte.statistics.results import Design, Speedup

_THOUSAND = 1024  # 8k is 8192 tokens, as in published benchmarks
Spread = Mapping[str, float] | None  # p50, p90, p99 and mean, in seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class BootTime:
    """One start of an engine by `halfbyte serve`."""

    url: str
    seconds: float
    cached: float | None  # share of the checkpoint in the page cache before the start
    kind: str  # cold, warm, partly warm or unknown

    def sentence(self) -> str:
        """Describe the start in one sentence."""
        how = "" if self.cached is None else f", {self.cached:.0%} of the checkpoint in the page cache before"
        return f"answered {self.seconds:.0f} s after its start ({self.kind}{how})"


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
    boot: BootTime | None  # known only if halfbyte started the server
    no_claim_because: str  # why its speed does not represent a GPU


@dataclass(frozen=True, slots=True, order=True)
class LoadPoint:
    """A load: prompt and output tokens of a request, concurrent requests, and the kind of prompt."""

    prompt: int
    output: int
    concurrency: int
    content: str = "random"
    chat: bool = False  # through the chat template: prompts are text, with approximate lengths

    def __str__(self) -> str:
        return f"concurrency {self.concurrency}, {self.shape}"

    @property
    def shape(self) -> str:
        """The point without its concurrency."""
        kind = ("" if self.content == "random" else f", {self.content}") + (", chat" if self.chat else "")
        return f"{_short(self.prompt)} in / {_short(self.output)} out{kind}"

    @property
    def context(self) -> float:
        """Mean number of tokens in a request's cache while decoding."""
        return self.prompt + self.output / 2


def _short(tokens: int) -> str:
    return f"{tokens // _THOUSAND}k" if tokens % _THOUSAND == 0 else str(tokens)


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
    drift: float | None  # of the throughput over the blocks; null unless large and significant
    client_cpu_share: float  # of a core, used by the load generator
    server: ServerCounters
    gpus: Mapping[str, Any] | None  # mean power, use and memory
    doubt: str  # why the speed may be wrong although all requests succeeded
    error_rate: float
    no_claim_because: str  # why this measurement supports no claim
    label: str  # the point in words

    @property
    def watts(self) -> float | None:
        """The mean power of the GPUs."""
        watts = (self.gpus or {}).get("watts")
        return watts if isinstance(watts, (int, float)) and not isinstance(watts, bool) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class PointRatio:
    """One ratio at one point, with its own interval and with the simultaneous interval of all ratios."""

    point: str
    measure: str
    individual: Speedup
    simultaneous: Speedup  # its interval holds for all ratios together
    sentence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EqualTpot:
    """The throughput ratio of one shape at equal time per output token."""

    shape: str
    tpot: float | None
    speedup: Speedup | None
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
    design: Design
    no_claim_because: str
    slo: Mapping[str, float]
    points: tuple[BenchPoint, ...]
    comparisons: tuple[PointRatio, ...]
    not_compared: tuple[str, ...]
    equal_tpot: tuple[EqualTpot, ...]
    headlines: tuple[str, ...]
    roofline: tuple[Mapping[str, Any], ...]
    roofline_missing: str
