"""Validate imported results: times are finite and not negative, counts are integers.

Result files are untrusted. A NaN would turn every rate into NaN and a negative time would make a server look fast, so
the first invalid value rejects the file.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

from halfbyte.bench.records import Block, Request
from halfbyte.errors import UsageError

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
