"""Import results of `vllm bench serve`, guidellm 0.8 and aiperf 0.13, and halfbyte's bench.jsonl, as validated blocks.

Each file is one server start, unless it records several. The readers follow the classes that write these files
(guidellm's GenerativeRequestStats, aiperf's MetricRecordInfo). aiperf needs --use-server-token-count: by default it
counts with its own tokenizer, and its rates are not comparable.

Result files are untrusted. A NaN would turn every rate into NaN and a negative time would make a server look fast, so
the first invalid value rejects the file.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median_low
from typing import Any, cast

from halfbyte.bench.records import (
    COLUMNS,
    Block,
    Request,
    read_records,
    requests_of,
)
from halfbyte.checkpoint.untrusted_files import parsed, plain_text
from halfbyte.errors import UsageError
from halfbyte.evidence.benchmark import LoadPoint

_LONGEST_S = 1e9
_SHORTEST_S = 1e-9  # shorter times, except 0, would give infinite rates
_MOST = 10**9


class InvalidResultError(Exception):
    """A value that cannot be a measurement."""


def whole_number(value: object, what: str, least: int = 0) -> int:
    """Return a count, or raise."""
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= _MOST:
        raise InvalidResultError(f"{what} is {value!r:.40}, not an integer of at least {least}")
    return value


def seconds(value: object, what: str, *, above_0: bool = False) -> float:
    """Return a time that is safe to divide by, or raise."""
    number = _some_time(value, what)
    if (above_0 or number > 0) and number < _SHORTEST_S:
        raise InvalidResultError(f"{what} is {value!r}, too short to be a measured time")
    return number


def _some_time(value: object, what: str) -> float:
    number = value if isinstance(value, (int, float)) and not isinstance(value, bool) else math.nan
    if not 0 <= number <= _LONGEST_S:
        raise InvalidResultError(f"{what} is {value!r:.40}, not a time in seconds")
    return number


def check_block(block: Block) -> None:
    """Raise if a block contains an invalid value."""
    for number, request in enumerate(block.requests, 1):
        _check_request(request, f"of request {number}")
    whole_number(block.point.concurrency, "the concurrency", 1)
    whole_number(block.point.prompt, "the prompt length")
    whole_number(block.point.output, "the output length")
    whole_number(block.turn, "the turn", -1)
    seconds(block.seconds, "the duration", above_0=bool(block.good))
    if not _finite([block.server, block.gpus, block.processor_share]):
        raise InvalidResultError("the server's metrics contain a number that is not finite")


def _check_request(request: Request, which: str) -> None:
    whole_number(request.prompt_tokens, f"the prompt length {which}")
    whole_number(request.output_tokens, f"the output length {which}")
    _some_time(request.start, f"the start time {which}")
    ttft = seconds(request.ttft, f"the time to the first token {which}")
    latency = seconds(request.latency, f"the latency {which}", above_0=not request.error)
    for gap in request.gaps:
        _some_time(gap, f"an inter-token latency {which}")
    if not request.error and ttft > latency:
        raise InvalidResultError(f"the first token {which} arrived after {ttft:g} s, the last after {latency:g} s")


def _finite(value: Any) -> bool:
    """Return whether every number in a nested value is finite."""
    if isinstance(value, Mapping):
        return all(map(_finite, cast("Mapping[str, Any]", value).values()))
    if isinstance(value, Sequence) and not isinstance(value, str):
        return all(map(_finite, cast("Sequence[Any]", value)))
    return not isinstance(value, float) or math.isfinite(value)


def refuse_duplicates(blocks: Iterable[Block], arm: str) -> None:
    """Refuse duplicate results of one server, even under different names. They would count as two server starts.

    Times have nanosecond resolution, so two measurements never have all times in common.
    """
    seen: dict[Any, str] = {}
    for block in blocks:
        if not block.requests:
            continue
        key = (block.point, block.seconds, block.requests)
        if key in seen:
            both = f"{seen[key]} and {block.source}" if seen[key] != block.source else block.source
            raise UsageError("duplicate results", where=f"{arm}: {both}", fix="pass each file once")
        seen[key] = block.source


Row = Mapping[str, Any]
_NS = 1e-9
_ONE_USER = "synchronous"  # guidellm's name for sequential requests
_FIX = "pass a bench.jsonl, a file of `vllm bench serve --save-detailed`, guidellm's JSON or aiperf's JSONL"


def read_results(path: Path, arm: str) -> list[Block]:
    """Return the blocks of a file for an arm. Raise if the format is unknown or a value is invalid."""
    try:
        text = plain_text(path)
        first = parsed(text.partition("\n")[0]) if path.suffix == ".jsonl" else parsed(text)
        rows = cast("dict[str, Any]", first if isinstance(first, dict) else {})
        blocks = _read(path, rows, text)
        for block in blocks:
            check_block(block)
    except InvalidResultError as error:
        raise UsageError(f"invalid results: {error}", where=str(path), fix=_FIX) from None
    except (OSError, ValueError, OverflowError) as error:
        raise UsageError("cannot read these results", where=str(path), fix=_FIX) from error
    except KeyError as error:
        what = f"these results are incomplete: {type(error).__name__}: {error}"
        raise UsageError(what, where=str(path), fix=_FIX) from None
    except (TypeError, AttributeError) as error:
        what = f"these results contain a value of the wrong type: {error}"
        raise UsageError(what, where=str(path), fix=_FIX) from None
    if not blocks:
        raise UsageError("these results contain no requests", where=str(path), fix=_FIX)
    # bench.jsonl records the server's start time; for other formats, the file name identifies the start.
    return [replace(block, arm=arm, turn=at, source=str(path)) for at, block in enumerate(blocks)]


def _read(path: Path, first: Row, text: str) -> list[Block]:
    if "settings" in first or "throughput" in first:
        return [block for block in read_records(path)[1] if block.arm == "A"]
    if "ttfts" in first and "start_times" in first:
        return [_vllm(first)]
    if "benchmarks" in first:
        return [_guidellm(row) for row in first["benchmarks"]]
    if "metadata" in first and "metrics" in first:
        return [_aiperf([parsed(line) for line in text.splitlines() if line.strip()])]
    raise UsageError("unknown result format", where=str(path), fix=_FIX)


def _vllm(result: Row) -> Block:
    for name in COLUMNS:
        if len(result[name]) != len(result["start_times"]):
            raise InvalidResultError(
                f"there are {len(result['start_times'])} start_times, but {len(result[name])} {name}"
            )
    any_length = requests_of(result, LoadPoint(1, 1, 1), exact=False)
    rate = result.get("request_rate") or "inf"
    paced = "" if rate in ("inf", math.inf) else f"{_number(rate):g} requests a second"
    users = result["max_concurrency"] or (at_once(any_length) if paced else result["num_prompts"])
    point = _point(any_length, whole_number(users, "the concurrency", 1), paced)
    return Block("", point, 0, result["duration"], any_length, source="vllm bench serve", doubt=_lengths(any_length))


def _guidellm(result: Row) -> Block:
    """Convert one guidellm benchmark. Requests cut off at its end are ignored, as guidellm does.

    Only some load types have a fixed concurrency. For the others, the peak concurrency is used, and the load type is
    part of the point, because open-loop load is not comparable.
    """
    failed: list[Row] = result["requests"]["errored"] or []
    requests = [_guidellm_request(row, "") for row in result["requests"]["successful"]]
    requests += [_guidellm_request(row, _error_message(row)) for row in failed]
    strategy: Row = result["config"]["strategy"]
    users, kind, rate = strategy.get("streams"), strategy.get("type_"), strategy.get("rate")
    if users is not None:
        return _block(requests, whole_number(users, "the concurrency", 1), "guidellm")
    paced = f"{kind} load" + (f" of {_number(rate):g} a second" if rate else "")
    return _block(requests, at_once(requests), "guidellm", "" if kind == _ONE_USER else paced)


def _error_message(row: Row) -> str:
    return str(row["info"].get("error") or "failed")


def _guidellm_request(row: Row, error: str) -> Request:
    timings: Row = row["info"]["timings"]
    start = timings.get("request_start") or timings["resolve_start"]
    first, last = timings.get("first_token_iteration"), timings.get("last_token_iteration")
    end = timings.get("request_end") or timings["resolve_end"]
    output = int(row.get("output_tokens") or 0)
    steps = int(timings.get("token_iterations") or 0)
    if not error and (first is None or last is None or not output):
        error = "no tokens received, or not streamed"
    ttft = (first - start) if first is not None else 0.0
    # guidellm records only the times of the first and last chunk, so all gaps are equal.
    gaps = ((last - first) / (steps - 1),) * (steps - 1) if first and last and steps > 1 else ()
    return Request(start, ttft, (last or end) - start, gaps, int(row.get("prompt_tokens") or 0), output, error)


def _aiperf(rows: Sequence[Row]) -> Block:
    """Convert the records of a profile_export.jsonl, without the warm-up."""
    measured = [row for row in rows if row["metadata"].get("benchmark_phase") != "warmup"]
    requests = [_aiperf_request(row) for row in measured]
    block = _block(requests, at_once(requests), "aiperf")
    if any("usage_completion_tokens" not in row["metrics"] for row in measured if not row.get("error")):
        what = "aiperf counted tokens with its own tokenizer (use --use-server-token-count)"
        return replace(block, doubt=what)
    return block


def _aiperf_request(row: Row) -> Request:
    metrics: Row = row["metrics"]
    metadata: Row = row["metadata"]

    def seconds(name: str) -> float:
        return _seconds(metrics[name]) if name in metrics else 0.0

    error: Row = row.get("error") or {}
    message = str(error.get("message") or error.get("type") or "failed") if error else ""
    if metadata.get("was_cancelled"):
        message = message or "cancelled"
    output = _count(metrics, "usage_completion_tokens", "output_sequence_length")
    gaps = metrics.get("inter_chunk_latency")
    return Request(
        start=metadata["request_start_ns"] * _NS,
        ttft=seconds("time_to_first_token"),
        latency=seconds("request_latency") or (metadata["request_end_ns"] - metadata["request_start_ns"]) * _NS,
        gaps=tuple(_seconds({"value": gap, "unit": gaps["unit"]}) for gap in gaps["value"]) if gaps else (),
        prompt_tokens=_count(metrics, "usage_prompt_tokens", "input_sequence_length"),
        output_tokens=output,
        error=message or ("" if output else "no tokens received"),
    )


def _count(metrics: Row, *names: str) -> int:
    return next((int(metrics[name]["value"]) for name in names if name in metrics), 0)


def _seconds(value: Row) -> float:
    scale = {"ms": 1e-3, "s": 1.0, "sec": 1.0, "us": 1e-6, "ns": _NS}[value["unit"]]
    return float(value["value"]) * scale


def at_once(requests: Sequence[Request]) -> int:
    """Return the peak number of concurrent requests."""
    events = sorted([(row.start, 1) for row in requests] + [(row.start + row.latency, -1) for row in requests])
    running = most = 0
    for _, change in events:
        running += change
        most = max(most, running)
    return most


def _block(requests: Sequence[Request], users: int, source: str, paced: str = "") -> Block:
    if not requests:
        raise UsageError("these results contain no requests", where=source, fix=_FIX)
    first = min(request.start for request in requests)
    last = max(request.start + request.latency for request in requests)
    moved = tuple(replace(request, start=request.start - first) for request in requests)
    return Block("", _point(moved, users, paced), 0, last - first, moved, source=source, doubt=_lengths(moved))


def _lengths(requests: Sequence[Request]) -> str:
    """Return a doubt if output lengths differ. The requested lengths are unknown, and stopping early looks fast."""
    lengths = {request.output_tokens for request in requests if not request.error}
    if len(lengths) < 2:  # noqa: PLR2004 - all equal
        return ""
    return f"output lengths vary from {min(lengths)} to {max(lengths)} tokens, so the servers may do different work"


def _number(value: object) -> float:
    if isinstance(value, (int, float)) and 0 < value < math.inf:
        return float(value)
    raise InvalidResultError(f"the request rate is {value!r:.40}, not a positive number")


def _point(requests: Sequence[Request], users: int, paced: str = "") -> LoadPoint:
    """Return the load point, with median lengths."""
    good = [request for request in requests if not request.error] or list(requests)
    prompt, output = median_low(row.prompt_tokens for row in good), median_low(row.output_tokens for row in good)
    return LoadPoint(prompt, output, users, f"imported, {paced}" if paced else "imported")
