"""Load points, blocks of requests, and the file that records them.

A load point is a shape (prompt and output tokens) with a concurrency and perhaps latency targets. `bench.jsonl` has the
settings in its first line, then one line per block with all its requests. After a crash the last line may be truncated.
Its block is then measured again.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import product
from pathlib import Path
from typing import Any, cast

from halfbyte.checkpoint.atomic_write import write_whole
from halfbyte.checkpoint.untrusted_files import parsed, plain_text
from halfbyte.endpoint.client import without_keys
from halfbyte.errors import UsageError
from halfbyte.evidence.benchmark import LoadPoint
from halfbyte.evidence.jsonl import encoded
from halfbyte.ui.suggest import did_you_mean

CONTENTS = ("random", "prose", "code", "json")
TARGETS = ("ttft", "tpot", "e2e")
_THOUSAND = 1024  # 8k:1k is 8192 and 1024 tokens, as in published benchmarks
_SECONDS: Mapping[str, float] = {"ms": 1e-3, "s": 1.0}


def points(shapes: Sequence[str], concurrency: str, contents: str, *, chat: bool = False) -> list[LoadPoint]:
    """Return every combination, in order and without duplicates."""
    kinds = [content.strip() for content in contents.split(",")]
    for content in kinds:
        if content not in CONTENTS:
            raise UsageError(f"unknown content '{content}'", where="--content", fix=did_you_mean(content, CONTENTS))
    combinations = [
        LoadPoint(*shape, users, content, chat)
        for shape, content, users in product(map(_shape, shapes), kinds, _concurrencies(concurrency))
    ]
    return list(dict.fromkeys(combinations))


def _shape(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"\s*(\d{1,9}k?)\s*:\s*(\d{1,9}k?)\s*", text, re.ASCII | re.IGNORECASE)
    lengths = [_tokens(part) for part in match.groups()] if match else [0, 0]
    if not all(lengths):
        raise UsageError(f"invalid shape '{text}'", where="--shape", fix="use a shape like 8k:1k or 512:128")
    return lengths[0], lengths[1]


def _tokens(text: str) -> int:
    return int(text[:-1]) * _THOUSAND if text[-1] in "kK" else int(text)


def _concurrencies(text: str) -> list[int]:
    parts = [part.strip() for part in text.split(",")]
    if not all(re.fullmatch(r"[1-9]\d{0,4}", part, re.ASCII) for part in parts):
        raise UsageError(f"invalid concurrency '{text}'", where="--concurrency", fix="use numbers like 1,8,64")
    return [int(part) for part in parts]


def targets(text: str | None) -> dict[str, float]:
    """Parse `ttft=1s,tpot=50ms` into seconds by name."""
    limits: dict[str, float] = {}
    for part in text.split(",") if text else []:
        match = re.fullmatch(r"\s*(\w+)\s*=\s*(\d{1,9}(?:\.\d+)?)\s*(ms|s)\s*", part, re.ASCII)
        if match is None:
            raise UsageError(f"invalid latency target '{part}'", where="--slo", fix="use a form like ttft=1s,tpot=50ms")
        name, number, unit = match.groups()
        if name not in TARGETS:
            raise UsageError(f"unknown latency '{name}'", where="--slo", fix=did_you_mean(name, TARGETS))
        limits[name] = float(number) * _SECONDS[unit]
    return limits


FILE = "bench.jsonl"
COLUMNS = ("start_times", "ttfts", "latencies", "itls", "input_lens", "output_lens", "errors")  # vLLM's columns
_FIRST_WORDS = 200


@dataclass(frozen=True, slots=True)
class Request:
    """One request: times in seconds since the start of the block, tokens as counted by the server, and any error."""

    start: float
    ttft: float
    latency: float
    gaps: tuple[float, ...]  # between stream chunks; with speculative decoding a chunk has several tokens
    prompt_tokens: int
    output_tokens: int
    error: str = ""

    @property
    def tpot(self) -> float | None:
        """Seconds per output token after the first; None for a single token."""
        return (self.latency - self.ttft) / (self.output_tokens - 1) if self.output_tokens > 1 else None


@dataclass(frozen=True, slots=True)
class Block:
    """One block: its server, load point, turn and requests."""

    arm: str
    point: LoadPoint
    turn: int
    seconds: float
    requests: tuple[Request, ...]
    failed: str = ""  # why the whole block failed
    server: Mapping[str, Any] = field(default_factory=dict[str, Any])
    gpus: Mapping[str, Any] | None = None
    processor_share: float = 0.0
    source: str = "vllm bench serve"
    doubt: str = ""  # why its speed supports no claim

    @property
    def good(self) -> tuple[Request, ...]:
        """The successful requests."""
        return tuple(request for request in self.requests if not request.error)

    @property
    def throughput(self) -> float:
        """Output tokens per second; 0 only for a failed block."""
        return sum(request.output_tokens for request in self.good) / self.seconds if self.seconds else 0.0

    @property
    def per_user(self) -> float:
        """Mean tokens per second per user while streaming."""
        paces = [request.tpot for request in self.good if request.tpot]
        return len(paces) / math.fsum(paces) if paces else 0.0

    @property
    def problem(self) -> str:
        """Why its speed does not count, or an empty string."""
        if self.failed:
            return self.failed
        bad = [request.error for request in self.requests if request.error]
        if bad:
            return f"{len(bad)} of {len(self.requests)} requests failed: {bad[0]}"
        return "" if self.throughput else "no tokens received"

    def as_dict(self) -> dict[str, Any]:
        """Return the block for JSON."""
        return asdict(self)


def block_of(row: Mapping[str, Any]) -> Block:
    """Parse the block of a line."""
    fields: dict[str, Any] = {
        **row,
        "point": LoadPoint(**row["point"]),
        "requests": tuple(_request(request) for request in row["requests"]),
    }
    return Block(**fields)


def _request(row: Mapping[str, Any]) -> Request:
    fields: dict[str, Any] = {**row, "gaps": tuple(row["gaps"])}
    return Request(**fields)


def requests_of(result: Mapping[str, Any], point: LoadPoint, *, exact: bool = True) -> tuple[Request, ...]:
    """Return the requests of a result of `vllm bench serve --save-detailed`.

    With `exact`, an unexpected prompt or output length is an error, because stopping early would look fast.
    """
    starts: list[float] = result["start_times"]
    first = min(starts, default=0.0)
    requests: list[Request] = []
    for start, *row in zip(starts, *(result[name] for name in COLUMNS[1:]), strict=True):
        ttft, latency, gaps, prompt, output, error = row
        requests.append(Request(start - first, ttft, latency, tuple(gaps), prompt, output or 0,
                            _problem(error, prompt, output or 0, point, exact=exact)))  # fmt: skip
    return tuple(requests)


def _problem(error: str, prompt: int, output: int, point: LoadPoint, *, exact: bool) -> str:
    if error:
        lines = [line.strip() for line in without_keys(error).strip().splitlines()]
        return lines[-1][:_FIRST_WORDS] if lines else "failed"
    if not output:
        return "failed without an error message"
    if exact and output != point.output:
        return f"received {output} output tokens instead of {point.output}"
    if exact and prompt != point.prompt and not point.chat:
        return f"the server counted {prompt} tokens in a prompt of {point.prompt}"
    return ""


@dataclass(slots=True)
class Records:
    """An open bench.jsonl with its settings and blocks."""

    path: Path
    settings: Mapping[str, Any]
    blocks: list[Block]

    def add(self, block: Block) -> None:
        """Append a block and flush the file."""
        self.blocks.append(block)
        with self.path.open("ab") as file:
            file.write(encoded(block.as_dict()))
            file.flush()


def open_records(folder: Path, settings: Mapping[str, Any]) -> Records:
    """Create the file, or resume one with the same settings. Raise if the folder contains another bench."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / FILE
    blocks: list[Block] = []
    if path.exists():
        before, blocks = read_records(path)
        if before and before != json.loads(json.dumps(settings)):
            what = f"the folder contains another bench ({'; '.join(_differences(before, settings))})"
            raise UsageError(what, where=str(path), fix="choose another folder with -o")
    # Rewrite the file without a truncated last line and incomplete pairs. Failed blocks are kept as evidence.
    whole = whole_pairs(blocks, settings["servers"])
    kept = [block for block in blocks if block.problem or block in whole]
    rows = [{"settings": settings}, *(block.as_dict() for block in kept)]
    write_whole(path, b"".join(map(encoded, rows)))
    return Records(path, settings, kept)


def _differences(before: Mapping[str, Any], now: Mapping[str, Any], of: str = "") -> list[str]:
    """Describe the differences of two settings, server by server."""
    lines: list[str] = []
    for name in sorted({*before, *now}):
        was, has = before.get(name), now.get(name)
        if isinstance(was, Mapping) and isinstance(has, Mapping):
            inner = "" if name == "servers" else f"{of}{name} "
            lines += _differences(cast("Mapping[str, Any]", was), cast("Mapping[str, Any]", has), inner)
        elif was != has:
            lines.append(f"{of}{name}: {was} before, {has} now")
    return lines


def whole_pairs(blocks: Iterable[Block], arms: Iterable[str]) -> list[Block]:
    """Drop failed blocks, and blocks whose partner in the A/B pair is missing."""
    measured = once(block for block in blocks if not block.problem)
    arms = tuple(arms)
    turns = {(block.arm, block.point, block.turn) for block in measured}
    return [block for block in measured if all((arm, block.point, block.turn) in turns for arm in arms)]


def once(blocks: Iterable[Block]) -> list[Block]:
    """Drop repeated measurements of the same turn, which are not further evidence. Keep failed blocks."""
    seen: set[tuple[str, LoadPoint, int]] = set()
    kept: list[Block] = []
    for block in blocks:
        turn = (block.arm, block.point, block.turn)
        if block.problem or turn not in seen:
            kept.append(block)
        if not block.problem:
            seen.add(turn)
    return kept


def read_records(path: Path) -> tuple[dict[str, Any], list[Block]]:
    """Return the settings and blocks of a file, each turn once. Ignore a truncated last line, but no other."""
    try:
        lines = plain_text(path).split("\n")
    except (OSError, ValueError) as error:
        raise UsageError("cannot read this file", where=str(path), fix="pass a bench.jsonl") from error
    settings: dict[str, Any] = {}
    blocks: list[Block] = []
    for number, line in enumerate(lines):
        try:
            row = parsed(line) if line else None
            if row is not None and "settings" in row:
                settings = row["settings"]
            elif row is not None:
                blocks.append(block_of(row))
        except (ValueError, TypeError, KeyError):
            if number == len(lines) - 1:
                continue
            what = f"line {number + 1} is not a valid block"
            raise UsageError(what, where=str(path), fix="measure again in another folder") from None
    return settings, once(blocks)
