"""`bench.jsonl`: the settings in the first line, then one line a block with every request of it.

A block is written whole or not at all: after a kill the last line may be torn, and is measured again.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, cast

from halfbyte.errors import UsageError
from halfbyte.source.foreign import parsed, plain_text
from halfbyte.validate.bench.shapes import Point
from halfbyte.validate.endpoint import without_keys
from halfbyte.write import write_whole

FILE = "bench.jsonl"
COLUMNS = ("start_times", "ttfts", "latencies", "itls", "input_lens", "output_lens", "errors")  # vLLM's, a request each
_FIRST_WORDS = 200


@dataclass(frozen=True, slots=True)
class Request:
    """One request: seconds since the block began, tokens as the server counted them, and what went wrong if it did."""

    start: float
    ttft: float
    latency: float
    gaps: tuple[float, ...]  # between chunks of the stream; with a draft there are several tokens in a chunk
    prompt_tokens: int
    output_tokens: int
    error: str = ""

    @property
    def tpot(self) -> float | None:
        """Seconds for each token after the first; None where there is only one."""
        return (self.latency - self.ttft) / (self.output_tokens - 1) if self.output_tokens > 1 else None


@dataclass(frozen=True, slots=True)
class Block:
    """One block: which server, where, in which turn, and all its requests."""

    arm: str
    point: Point
    turn: int
    seconds: float
    requests: tuple[Request, ...]
    failed: str = ""  # why there was no block at all
    server: Mapping[str, Any] = field(default_factory=dict[str, Any])
    gpus: Mapping[str, Any] | None = None
    processor_share: float = 0.0
    source: str = "vllm bench serve"
    doubt: str = ""  # why its speed counts, but supports no claim

    @property
    def good(self) -> tuple[Request, ...]:
        """The requests that were answered in full."""
        return tuple(request for request in self.requests if not request.error)

    @property
    def throughput(self) -> float:
        """Output tokens a second; 0 only where nothing came, which is never counted as a speed."""
        return sum(request.output_tokens for request in self.good) / self.seconds if self.seconds else 0.0

    @property
    def per_user(self) -> float:
        """Tokens a second that one user sees, on average: how fast text streams."""
        paces = [request.tpot for request in self.good if request.tpot]
        return len(paces) / math.fsum(paces) if paces else 0.0

    @property
    def problem(self) -> str:
        """Why its speed does not count; empty where it does."""
        if self.failed:
            return self.failed
        bad = [request.error for request in self.requests if request.error]
        if bad:
            return f"{len(bad)} of {len(self.requests)} requests failed: {bad[0]}"
        return "" if self.throughput else "no token came"

    def as_dict(self) -> dict[str, Any]:
        """Return it for JSON."""
        return asdict(self)


def block_of(found: Mapping[str, Any]) -> Block:
    """Return the block that a line holds."""
    fields: dict[str, Any] = {
        **found,
        "point": Point(**found["point"]),
        "requests": tuple(_request(row) for row in found["requests"]),
    }
    return Block(**fields)


def _request(row: Mapping[str, Any]) -> Request:
    fields: dict[str, Any] = {**row, "gaps": tuple(row["gaps"])}
    return Request(**fields)


def requests_of(result: Mapping[str, Any], point: Point, *, exact: bool = True) -> tuple[Request, ...]:
    """Return the requests of one result of `vllm bench serve --save-detailed`.

    With `exact` a prompt or an answer of another length than asked for is an error: an arm that stops early would win.
    """
    starts: list[float] = result["start_times"]
    first = min(starts, default=0.0)
    made: list[Request] = []
    for start, *row in zip(starts, *(result[name] for name in COLUMNS[1:]), strict=True):
        ttft, latency, gaps, prompt, output, error = row
        made.append(Request(start - first, ttft, latency, tuple(gaps), prompt, output or 0,
                            _problem(error, prompt, output or 0, point, exact=exact)))  # fmt: skip
    return tuple(made)


def _problem(error: str, prompt: int, output: int, point: Point, *, exact: bool) -> str:
    if error:
        lines = [line.strip() for line in without_keys(error).strip().splitlines()]
        return lines[-1][:_FIRST_WORDS] if lines else "failed"
    if not output:
        return "failed without a word"
    if exact and output != point.output:
        return f"{output} tokens came, {point.output} were asked for"
    if exact and prompt != point.prompt and not point.chat:
        return f"the server counts {prompt} tokens in a prompt of {point.prompt}"
    return ""


@dataclass(slots=True)
class Records:
    """The file, open for more; `settings` must be those it was begun with."""

    path: Path
    settings: Mapping[str, Any]
    blocks: list[Block]

    def add(self, block: Block) -> None:
        """Append a block; it is in the file when this returns."""
        self.blocks.append(block)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(block.as_dict()) + "\n")
            file.flush()


def open_records(folder: Path, settings: Mapping[str, Any]) -> Records:
    """Begin the file, or go on with one that has the same settings; another bench in the folder is an error."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / FILE
    blocks: list[Block] = []
    if path.exists():
        before, blocks = read_records(path)
        if before and before != json.loads(json.dumps(settings)):
            what = f"there is another bench in this folder ({'; '.join(_differences(before, settings))})"
            raise UsageError(what, where=str(path), fix="name another folder with -o")
    # Written anew: without a torn last line, and without half a pair. What failed stays: it happened.
    whole = whole_pairs(blocks, settings["servers"])
    kept = [block for block in blocks if block.problem or block in whole]
    lines = [json.dumps({"settings": settings}), *(json.dumps(block.as_dict()) for block in kept)]
    write_whole(path, ("\n".join(lines) + "\n").encode())
    return Records(path, settings, kept)


def _differences(before: Mapping[str, Any], now: Mapping[str, Any], of: str = "") -> list[str]:
    """Return in words in what two settings differ, those of the servers one by one."""
    said: list[str] = []
    for name in sorted({*before, *now}):
        was, has = before.get(name), now.get(name)
        if isinstance(was, Mapping) and isinstance(has, Mapping):
            inner = "" if name == "servers" else f"{of}{name} "
            said += _differences(cast("Mapping[str, Any]", was), cast("Mapping[str, Any]", has), inner)
        elif was != has:
            said.append(f"{of}{name}: {was} there, {has} now")
    return said


def whole_pairs(blocks: Iterable[Block], arms: Iterable[str]) -> list[Block]:
    """Leave out failed blocks, and those whose partner in an A/B is missing: neighbours must be neighbours in time."""
    measured = once(block for block in blocks if not block.problem)
    arms = tuple(arms)
    turns = {(block.arm, block.point, block.turn) for block in measured}
    return [block for block in measured if all((arm, block.point, block.turn) in turns for arm in arms)]


def once(blocks: Iterable[Block]) -> list[Block]:
    """Leave out a turn that was measured before: twice the same turn is not more evidence. What failed stays."""
    seen: set[tuple[str, Point, int]] = set()
    kept: list[Block] = []
    for block in blocks:
        turn = (block.arm, block.point, block.turn)
        if block.problem or turn not in seen:
            kept.append(block)
        if not block.problem:
            seen.add(turn)
    return kept


def read_records(path: Path) -> tuple[dict[str, Any], list[Block]]:
    """Return settings and blocks of a file, each turn once; a torn last line is left out, more is an error."""
    try:
        lines = plain_text(path).split("\n")
    except (OSError, ValueError) as error:
        raise UsageError("cannot read this file", where=str(path), fix="name a bench.jsonl") from error
    settings: dict[str, Any] = {}
    blocks: list[Block] = []
    for number, line in enumerate(lines):
        try:
            found = parsed(line) if line else None
            if found is not None and "settings" in found:
                settings = found["settings"]
            elif found is not None:
                blocks.append(block_of(found))
        except (ValueError, TypeError, KeyError):
            if number == len(lines) - 1:
                continue
            what = f"line {number + 1} is no block of a bench"
            raise UsageError(what, where=str(path), fix="measure again, in another folder") from None
    return settings, once(blocks)
