"""Results that others measured: files of `vllm bench serve`, guidellm 0.8, aiperf 0.13, and our own bench.jsonl.

Each file is one start of a server, unless it says otherwise. The readers of guidellm and aiperf follow the classes that
write these files (guidellm's GenerativeRequestStats, aiperf's MetricRecordInfo). aiperf must have counted with
--use-server-token-count: by default it counts with a tokenizer of its own, and its rates are then not those of others.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median_low
from typing import Any, cast

from halfbyte.errors import UsageError
from halfbyte.source.foreign import parsed, plain_text
from halfbyte.validate.bench.import_checks import NonsenseError, check_block, whole_number
from halfbyte.validate.bench.records import COLUMNS, Block, Request, read_records, requests_of
from halfbyte.validate.bench.shapes import Point

Row = Mapping[str, Any]
_NS = 1e-9
_ONE_USER = "synchronous"  # guidellm's word for a user who waits for an answer before asking again
_FIX = "take a bench.jsonl, the file of `vllm bench serve --save-detailed`, guidellm's JSON or aiperf's JSONL"


def read_results(path: Path, arm: str) -> list[Block]:
    """Return the blocks of a file as those of an arm; a file that no reader knows is an error."""
    try:
        text = plain_text(path)
        first = parsed(text.partition("\n")[0]) if path.suffix == ".jsonl" else parsed(text)
        rows = cast("dict[str, Any]", first if isinstance(first, dict) else {})
        blocks = _read(path, rows, text)
        for block in blocks:
            check_block(block)
    except NonsenseError as error:
        raise UsageError(f"these results cannot be: {error}", where=str(path), fix=_FIX) from None
    except (OSError, ValueError, OverflowError) as error:
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
        return [_aiperf([parsed(line) for line in text.splitlines() if line.strip()])]
    raise UsageError("nobody knows what these results are", where=str(path), fix=_FIX)


def _vllm(found: Row) -> Block:
    for name in COLUMNS:
        if len(found[name]) != len(found["start_times"]):
            raise NonsenseError(f"there are {len(found['start_times'])} start_times, but {len(found[name])} {name}")
    any_length = requests_of(found, Point(1, 1, 1), exact=False)
    rate = found.get("request_rate") or "inf"
    paced = "" if rate in ("inf", math.inf) else f"{_number(rate):g} requests a second"
    users = found["max_concurrency"] or (at_once(any_length) if paced else found["num_prompts"])
    point = _point(any_length, whole_number(users, "the number of requests at once", 1), paced)
    return Block("", point, 0, found["duration"], any_length, source="vllm bench serve", doubt=_lengths(any_length))


def _guidellm(found: Row) -> Block:
    """One of guidellm's benchmarks. Requests that it cut off at its end are left out, as it does itself.

    Only some of its loads keep a number of requests under way; of the others the most at once is counted, and they are
    named, as a load that does not wait for answers is another one.
    """
    failed: list[Row] = found["requests"]["errored"] or []
    requests = [_guidellm_request(row, "") for row in found["requests"]["successful"]]
    requests += [_guidellm_request(row, _words(row)) for row in failed]
    strategy: Row = found["config"]["strategy"]
    users, kind, rate = strategy.get("streams"), strategy.get("type_"), strategy.get("rate")
    if users is not None:
        return _block(requests, whole_number(users, "the number of requests at once", 1), "guidellm")
    paced = f"{kind} load" + (f" of {_number(rate):g} a second" if rate else "")
    return _block(requests, at_once(requests), "guidellm", "" if kind == _ONE_USER else paced)


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
    block = _block(requests, at_once(requests), "aiperf")
    if any("usage_completion_tokens" not in row["metrics"] for row in asked if not row.get("error")):
        what = "aiperf counted tokens itself, which need not be the server's (--use-server-token-count asks the server)"
        return replace(block, doubt=what)
    return block


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


def _block(requests: Sequence[Request], users: int, source: str, paced: str = "") -> Block:
    if not requests:
        raise UsageError("there are no requests in these results", where=source, fix=_FIX)
    first = min(one.start for one in requests)
    last = max(one.start + one.latency for one in requests)
    moved = tuple(replace(one, start=one.start - first) for one in requests)
    return Block("", _point(moved, users, paced), 0, last - first, moved, source=source, doubt=_lengths(moved))


def _lengths(requests: Sequence[Request]) -> str:
    """Say it if answers differ in length. The file does not tell which were asked for, and who stops early is fast."""
    lengths = {one.output_tokens for one in requests if not one.error}
    if len(lengths) < 2:  # noqa: PLR2004 - all alike
        return ""
    return f"its answers have {min(lengths)} to {max(lengths)} tokens, so that two servers need not do the same work"


def _number(value: object) -> float:
    if isinstance(value, (int, float)) and 0 < value < math.inf:
        return float(value)
    raise NonsenseError(f"the rate of requests is {value!r:.40}, not a number above 0")


def _point(requests: Sequence[Request], users: int, paced: str = "") -> Point:
    """Return where it was measured, by the lengths in the middle."""
    good = [one for one in requests if not one.error] or list(requests)
    prompt, output = median_low(one.prompt_tokens for one in good), median_low(one.output_tokens for one in good)
    return Point(prompt, output, users, f"imported, {paced}" if paced else "imported")
