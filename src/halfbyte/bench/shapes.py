"""Parse load points (shapes, concurrencies, prompt content) and latency targets."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from halfbyte.errors import UsageError
from halfbyte.ui.suggest import did_you_mean

CONTENTS = ("random", "prose", "code", "json")
TARGETS = ("ttft", "tpot", "e2e")
_THOUSAND = 1024  # 8k:1k is 8192 and 1024 tokens, as in published benchmarks
_SECONDS: Mapping[str, float] = {"ms": 1e-3, "s": 1.0}


@dataclass(frozen=True, slots=True, order=True)
class Point:
    """A load point: prompt tokens, output tokens, concurrent requests, and prompt content."""

    prompt: int
    output: int
    concurrency: int
    content: str = "random"
    chat: bool = False  # through the chat template: prompts are text, with approximate lengths

    def __str__(self) -> str:
        kind = ("" if self.content == "random" else f", {self.content}") + (", chat" if self.chat else "")
        return f"concurrency {self.concurrency}, {_short(self.prompt)} in / {_short(self.output)} out{kind}"

    @property
    def context(self) -> float:
        """Mean number of tokens in a request's cache while decoding."""
        return self.prompt + self.output / 2


def points(shapes: Sequence[str], concurrency: str, contents: str, *, chat: bool = False) -> list[Point]:
    """Return every combination, in order and without duplicates."""
    kinds = [content.strip() for content in contents.split(",")]
    for content in kinds:
        if content not in CONTENTS:
            raise UsageError(f"unknown content '{content}'", where="--content", fix=did_you_mean(content, CONTENTS))
    combinations = [
        Point(*shape, users, content, chat)
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


def _short(tokens: int) -> str:
    return f"{tokens // _THOUSAND}k" if tokens % _THOUSAND == 0 else str(tokens)


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
