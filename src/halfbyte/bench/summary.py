"""Summarize the blocks of one server at one point: rates, latencies, errors, goodput, server metrics, and doubts.

A block is doubtful if its speed may be wrong although all requests succeeded. It counts, but supports no claim. The
server's token counter shows whether other clients used it, or whether it generated fewer tokens than reported. A
response whose tokens all arrive at once was buffered, e.g. by a proxy, so its streaming speed is unknown.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from halfbyte.bench.blocks import WARM_UP
from halfbyte.bench.records import Block, Request
from halfbyte.evidence.benchmark import BenchPoint, ServerCounters, Spread
from halfbyte.statistics.throughput import DRIFT_P, drift_of

MOST_APART = 0.02  # tolerated relative difference between the server's counter and its responses
_LATE = 2  # tokens per user that the counter may lag behind
_FEW = 8  # tokens of health checks
FASTEST_S = 50e-6  # per token: faster than any model decodes


def doubt_of(block: Block) -> str:
    """Return why a block supports no claim, or an empty string."""
    return block.doubt or _counted_otherwise(block) or _held_back(block)


def _counted_otherwise(block: Block) -> str:
    counter, reported = block.server.get("generated_tokens"), sum(request.output_tokens for request in block.good)
    if counter is None or block.problem:
        return ""
    if abs(counter - reported) <= max(MOST_APART * reported, _LATE * block.point.concurrency + _FEW):
        return ""
    if counter > reported:
        return f"other clients used the server: it generated {counter:,.0f} tokens during a block of {reported:,}"
    return f"the server's counter shows {counter:,.0f} tokens, but its responses report {reported:,}"


def _held_back(block: Block) -> str:
    paces = [request.tpot for request in block.good if request.tpot is not None]
    at_once = sum(pace < FASTEST_S for pace in paces)
    if at_once * 2 <= len(paces):
        return ""
    return f"{at_once} of {len(paces)} responses arrived all at once instead of streaming (is a proxy buffering them?)"


PERCENTILES = (50, 90, 99)
BUSY_CLIENT = 0.8  # share of a core above which the load generator may be the bottleneck
KNOWN_PREFIX = 0.01  # prefix cache hit rate above which no claim is made
_KINDS_OF_ERRORS = 3
_FEWEST_FOR_DRIFT = 4
_LARGE_DRIFT = 0.1


def summarize(blocks: Sequence[Block], slo: Mapping[str, float]) -> BenchPoint:
    """Summarize all blocks of one arm at one point. Failed blocks count as errors."""
    arm, point = blocks[0].arm, blocks[0].point
    whole = [block for block in blocks if block.turn != WARM_UP and not block.failed]
    requests = [request for block in whole for request in block.requests]
    good = [request for request in requests if not request.error]
    lost = [block for block in blocks if block.failed or (block.turn == WARM_UP and block.problem)]
    errors = Counter([request.error for request in requests if request.error] + [block.problem for block in lost])
    seconds = sum(block.seconds for block in whole)
    within = [request for request in good if _within(request, slo)]
    paces = [request.tpot for request in good if request.tpot]
    measured = [block.throughput for block in whole if not block.problem]
    total, failed = len(requests) + len(lost), len(requests) - len(good) + len(lost)
    most_errors = dict(errors.most_common(_KINDS_OF_ERRORS))
    client = max((block.processor_share for block in whole), default=0.0)
    counters = _server([block.server for block in whole])
    doubt = next((doubt for doubt in [doubt_of(block) for block in whole] if doubt), "")
    return BenchPoint(
        arm=arm,
        point=point,
        blocks=len(whole),
        requests=total,
        failed=failed,
        errors=most_errors,
        requests_per_second=_rate(len(good), seconds),
        tokens_per_second=_rate(sum(request.output_tokens for request in good), seconds),
        steady_tokens_per_second=steady([block for block in whole if not block.problem]),
        tokens_per_second_per_user=_rate(len(paces), sum(paces)),
        prefill_tokens_per_second=_median([row.prompt_tokens / row.ttft for row in good if row.ttft]),
        ttft=_spread([request.ttft for request in good]),
        itl=_spread([gap for request in good for gap in request.gaps]),
        tpot=_spread(paces),
        e2e=_spread([request.latency for request in good]),
        goodput_per_second=len(within) / seconds if slo and good and seconds else None,
        goodput_share=len(within) / len(requests) if slo and requests else None,
        drift=_drift(measured),
        client_cpu_share=client,
        server=counters,
        gpus=_gpus([block.gpus for block in whole if block.gpus]),
        doubt=doubt,
        error_rate=failed / total if total else 1.0,
        no_claim_because=_failures(arm, failed, total, most_errors)
        or _busy(client)
        or _known_prefix(arm, counters)
        or doubt,
        label=str(point),
    )


def _failures(arm: str, failed: int, requests: int, errors: Mapping[str, int]) -> str:
    if requests and not failed:
        return ""
    return f"{failed} of {requests} requests of {arm} failed: {next(iter(errors), 'no measurements')}"


def _busy(client: float) -> str:
    return f"the load generator used {client:.0%} of a core and may be the bottleneck" if client > BUSY_CLIENT else ""


def _known_prefix(arm: str, counters: ServerCounters) -> str:
    share = counters.prefix_hit_share or 0.0
    return (
        f"{arm}'s prefix cache hit rate is {share:.0%}; use another --seed for new prompts"
        if share > KNOWN_PREFIX
        else ""
    )


def steady(blocks: Sequence[Block]) -> float | None:
    """Return tokens per second in steady state: from the first tokens of all users to the start of the last request.

    The plain rate also includes ramp-up and ramp-down, which are the same for both servers. Return None if a block has
    no steady state.
    """
    tokens = seconds = 0.0
    for block in blocks:
        order = sorted(block.requests, key=lambda request: request.start)
        start = max((row.start + row.ttft for row in order[: block.point.concurrency]), default=0.0)
        end = order[-1].start if order else 0.0
        if end <= start:
            return None
        for request in order:
            times = request.start + request.ttft + np.cumsum((0.0, *request.gaps))
            inside = int(((times > start) & (times <= end)).sum())
            tokens += inside * request.output_tokens / len(times)
        seconds += end - start
    return tokens / seconds if seconds else None


def _within(request: Request, slo: Mapping[str, float]) -> bool:
    latencies = {"ttft": request.ttft, "tpot": request.tpot or 0.0, "e2e": request.latency}
    return all(latencies[name] <= limit for name, limit in slo.items())


def _rate(count: float, seconds: float) -> float | None:
    return count / seconds if count and seconds else None


def _median(values: Sequence[float]) -> float | None:
    return float(np.median(values)) if values else None


def _spread(values: Sequence[float]) -> Spread:
    if not values:
        return None
    return {f"p{at}": float(np.percentile(values, at)) for at in PERCENTILES} | {"mean": float(np.mean(values))}


def _drift(throughputs: Sequence[float]) -> float | None:
    if len(throughputs) < _FEWEST_FOR_DRIFT:
        return None
    share, p = drift_of(throughputs)
    return share if share is not None and p is not None and p < DRIFT_P and abs(share) > _LARGE_DRIFT else None


def _server(pages: Sequence[Mapping[str, Any]]) -> ServerCounters:
    """Add up the counters of all blocks. A counter that no block has is None."""

    def total(name: str) -> float | None:
        known = [page[name] for page in pages if page.get(name) is not None]
        return sum(known) if known else None

    queries, hits = total("prefix_queries"), total("prefix_hits")
    drafts, accepted = total("draft_tokens"), total("accepted_tokens")
    uses = [page["kv_use_peak"] for page in pages if page.get("kv_use_peak") is not None]
    return ServerCounters(
        prefix_queries=queries,
        prefix_hits=hits,
        draft_tokens=drafts,
        accepted_tokens=accepted,
        preemptions=total("preemptions"),
        generated_tokens=total("generated_tokens"),
        prefix_hit_share=hits / queries if queries and hits is not None else None,
        draft_acceptance=accepted / drafts if drafts and accepted is not None else None,
        kv_use_peak=max(uses, default=None),
    )


def _gpus(samples: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    if not samples:
        return None
    names = [name for name in samples[0] if name not in ("gpus", "samples")]
    known = {name: [sample[name] for sample in samples if sample[name] is not None] for name in names}
    return {"gpus": samples[0]["gpus"]} | {name: float(np.mean(rows)) if rows else None for name, rows in known.items()}
