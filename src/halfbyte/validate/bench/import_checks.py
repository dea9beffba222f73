"""What a file of results may say: times are finite and not negative, counts are whole numbers.

A file is written by others, and edited by anybody. One time that is no number would make every rate of the report "not
a number", and a negative one would make a server fast; so the first that cannot be is told, and the file is refused.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

from halfbyte.errors import UsageError
from halfbyte.validate.bench.records import Block, Request

_LONGEST_S = 1e9
_SHORTEST_S = 1e-9  # below a clock's step, but for 0: one would make rates that are not finite
_MOST = 10**9


class NonsenseError(Exception):
    """A value that no measurement has, said in a sentence."""


def whole_number(value: object, what: str, least: int = 0) -> int:
    """Return a count; anything else is nonsense."""
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= _MOST:
        raise NonsenseError(f"{what} is {value!r:.40}, not a whole number from {least}")
    return value


def seconds(value: object, what: str, *, above_0: bool = False) -> float:
    """Return a time that something is divided by; anything else is nonsense."""
    number = _some_time(value, what)
    if (above_0 or number > 0) and number < _SHORTEST_S:
        raise NonsenseError(f"{what} is {value!r}, not a time that anything takes")
    return number


def _some_time(value: object, what: str) -> float:
    number = value if isinstance(value, (int, float)) and not isinstance(value, bool) else math.nan
    if not 0 <= number <= _LONGEST_S:
        raise NonsenseError(f"{what} is {value!r:.40}, not a time in seconds")
    return number


def check_block(block: Block) -> None:
    """Refuse a block that nobody can have measured."""
    for number, request in enumerate(block.requests, 1):
        _check_request(request, f"of request {number}")
    whole_number(block.point.concurrency, "the number of requests at once", 1)
    whole_number(block.point.prompt, "the length of prompts")
    whole_number(block.point.output, "the length of answers")
    whole_number(block.turn, "the turn of a block", -1)
    seconds(block.seconds, "how long it all took", above_0=bool(block.good))
    if not _finite([block.server, block.gpus, block.processor_share]):
        raise NonsenseError("what the server says of itself holds a number that is not finite")


def _check_request(request: Request, which: str) -> None:
    whole_number(request.prompt_tokens, f"the prompt's length {which}")
    whole_number(request.output_tokens, f"the answer's length {which}")
    _some_time(request.start, f"the start {which}")
    ttft = seconds(request.ttft, f"the time to the first token {which}")
    latency = seconds(request.latency, f"the latency {which}", above_0=not request.error)
    for gap in request.gaps:
        _some_time(gap, f"a time between tokens {which}")
    if not request.error and ttft > latency:
        raise NonsenseError(f"the first token {which} came after {ttft:g} s, the last after {latency:g} s")


def _finite(value: Any) -> bool:
    """Return whether every number in it is finite, however deep it lies."""
    if isinstance(value, Mapping):
        return all(map(_finite, cast("Mapping[str, Any]", value).values()))
    if isinstance(value, Sequence) and not isinstance(value, str):
        return all(map(_finite, cast("Sequence[Any]", value)))
    return not isinstance(value, float) or math.isfinite(value)


def refuse_twice(blocks: Iterable[Block], arm: str) -> None:
    """Refuse results that are given twice for one server, under whatever names: they would count as two starts.

    Times are measured to the nanosecond, so that two measurements are never alike in all of them.
    """
    seen: dict[Any, str] = {}
    for block in blocks:
        if not block.requests:
            continue
        told = (block.point, block.seconds, block.requests)
        if told in seen:
            both = f"{seen[told]} and {block.source}" if seen[told] != block.source else block.source
            raise UsageError("the same results are given twice", where=f"{arm}: {both}", fix="name each file once")
        seen[told] = block.source
