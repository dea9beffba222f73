"""Results that others measured: files of `vllm bench serve`, guidellm 0.8, aiperf 0.13, and our own bench.jsonl.

Each file is one start of a server, unless it says otherwise. The readers of guidellm and aiperf follow the classes that
write these files (guidellm's GenerativeRequestStats, aiperf's MetricRecordInfo). aiperf must have counted with
--use-server-token-count: by default it counts with a tokenizer of its own, and its rates are then not those of others.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median_low
from typing import Any, cast

from halfbyte.errors import UsageError
from halfbyte.validate.bench.import_checks import NonsenseError, check_block, whole_number
from halfbyte.validate.bench.records import Block, Request, read_records, requests_of
from halfbyte.validate.bench.shapes import Point

Row = Mapping[str, Any]
_NS = 1e-9
_FIX = "take a bench.jsonl, the file of `vllm bench serve --save-detailed`, guidellm's JSON or aiperf's JSONL"


def read_results(path: Path, arm: str) -> list[Block]:
    """Return the blocks of a file as those of an arm; a file that no reader knows is an error."""
    try:
        text = path.read_text(encoding="utf-8")
        first = json.loads(text.partition("\n")[0]) if path.suffix == ".jsonl" else json.loads(text)
        rows = cast("dict[str, Any]", first if isinstance(first, dict) else {})
        blocks = _read(path, rows, text)
        for block in blocks:
            check_block(block)
    except NonsenseError as error:
        raise UsageError(f"these results cannot be: {error}", where=str(path), fix=_FIX) from None
    except (OSError, ValueError, OverflowError, RecursionError) as error:
        raise UsageError("cannot read these results", where=str(path), fix=_FIX) from error
    except KeyError as error:
        what = f"these results lack something: {type(error).__name__}: {error}"
        raise UsageError(what, where=str(path), fix=_FIX) from None
    except (TypeError, AttributeError) as error:
        what = f"something in these results is of another kind than it should be: {error}"
        raise UsageError(what, where=str(path), fix=_FIX) from None
    if not blocks:
        raise UsageError("there are no requests in these results", where=str(path), fix=_FIX)
    # Blocks of our own files keep the start that the server told; others have the file's name for it.
    return [replace(block, arm=arm, turn=at, source=str(path)) for at, block in enumerate(blocks)]


def _read(path: Path, first: Row, text: str) -> list[Block]:
    if "settings" in first or "throughput" in first:
        return [block for block in read_records(path)[1] if block.arm == "A"]
    if "ttfts" in first and "start_times" in first:
        return [_vllm(first)]
    if "benchmarks" in first:
        return [_guidellm(row) for row in first["benchmarks"]]
    if "metadata" in first and "metrics" in first:
        return [_aiperf([json.loads(line) for line in text.splitlines() if line.strip()])]
    raise UsageError("nobody knows what these results are", where=str(path), fix=_FIX)


def _vllm(found: Row) -> Block:
    users = whole_number(found["max_concurrency"] or found["num_prompts"], "the number of requests at once", 1)
    any_length = requests_of(found, Point(1, 1, users), exact=False)
    point = _point(any_length, users)
    return Block("", point, 0, found["duration"], any_length, source="vllm bench serve")


def _guidellm(found: Row) -> Block:
    """One of guidellm's benchmarks. Requests that it cut off at its end are left out, as it does itself."""
    failed: list[Row] = found["requests"]["errored"] or []
    requests = [_guidellm_request(row, "") for row in found["requests"]["successful"]]
    requests += [_guidellm_request(row, _words(row)) for row in failed]
    strategy: Row = found["config"]["strategy"]
    users = strategy.get("streams") or strategy.get("max_concurrency") or 1
    return _block(requests, int(users), "guidellm")


def _words(row: Row) -> str:
    return str(row["info"].get("error") or "failed")


def _guidellm_request(row: Row, error: str) -> Request:
    timings: Row = row["info"]["timings"]
    start = timings.get("request_start") or timings["resolve_start"]
    first, last = timings.get("first_token_iteration"), timings.get("last_token_iteration")
    end = timings.get("request_end") or timings["resolve_end"]
    output = int(row.get("output_tokens") or 0)
    steps = int(timings.get("token_iterations") or 0)
    if not error and (first is None or last is None or not output):
        error = "no token came, or it was not streamed"
    ttft = (first - start) if first is not None else 0.0
    # guidellm keeps the first and the last chunk's time only: between them all gaps are alike.
    gaps = ((last - first) / (steps - 1),) * (steps - 1) if first and last and steps > 1 else ()
    return Request(start, ttft, (last or end) - start, gaps, int(row.get("prompt_tokens") or 0), output, error)


def _aiperf(rows: Sequence[Row]) -> Block:
    """All records of a profile_export.jsonl; those of a warm-up are left out."""
    asked = [row for row in rows if row["metadata"].get("benchmark_phase") != "warmup"]
    requests = [_aiperf_request(row) for row in asked]
    return _block(requests, at_once(requests), "aiperf")


def _aiperf_request(row: Row) -> Request:
    metrics: Row = row["metrics"]
    about: Row = row["metadata"]

    def seconds(name: str) -> float:
        return _seconds(metrics[name]) if name in metrics else 0.0

    error: Row = row.get("error") or {}
    words = str(error.get("message") or error.get("type") or "failed") if error else ""
    if about.get("was_cancelled"):
        words = words or "cancelled"
    output = _count(metrics, "usage_completion_tokens", "output_sequence_length")
    gaps = metrics.get("inter_chunk_latency")
    return Request(
        start=about["request_start_ns"] * _NS,
        ttft=seconds("time_to_first_token"),
        latency=seconds("request_latency") or (about["request_end_ns"] - about["request_start_ns"]) * _NS,
        gaps=tuple(_seconds({"value": gap, "unit": gaps["unit"]}) for gap in gaps["value"]) if gaps else (),
        prompt_tokens=_count(metrics, "usage_prompt_tokens", "input_sequence_length"),
        output_tokens=output,
        error=words or ("" if output else "no token came"),
    )


def _count(metrics: Row, *names: str) -> int:
    return next((int(metrics[name]["value"]) for name in names if name in metrics), 0)


def _seconds(value: Row) -> float:
    scale = {"ms": 1e-3, "s": 1.0, "sec": 1.0, "us": 1e-6, "ns": _NS}[value["unit"]]
    return float(value["value"]) * scale


def at_once(requests: Sequence[Request]) -> int:
    """Return how many requests were under way at the same time at most."""
    events = sorted([(one.start, 1) for one in requests] + [(one.start + one.latency, -1) for one in requests])
    running = most = 0
    for _, change in events:
        running += change
        most = max(most, running)
    return most


def _block(requests: Sequence[Request], users: int, source: str) -> Block:
    if not requests:
        raise UsageError("there are no requests in these results", where=source, fix=_FIX)
    first = min(one.start for one in requests)
    last = max(one.start + one.latency for one in requests)
    moved = tuple(replace(one, start=one.start - first) for one in requests)
    return Block("", _point(moved, users), 0, last - first, moved, source=source)


def _point(requests: Sequence[Request], users: int) -> Point:
    """Return where it was measured, by the lengths in the middle."""
    good = [one for one in requests if not one.error] or list(requests)
    return Point(
        median_low(one.prompt_tokens for one in good), median_low(one.output_tokens for one in good), users, "imported"
    )
