"""The record of `halfbyte loops`: how often a checkpoint falls into a loop on open-ended prompts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from halfbyte.evidence.audit import Level
from halfbyte.evidence.record import MeasuredRecord


@dataclass(frozen=True, kw_only=True)  # without slots, because Loops has a second base class
class LoopCounts:
    """Counts over all texts of one checkpoint."""

    texts: int
    loops: int
    short: int  # texts that end after a few words
    unfinished: int  # texts cut by the token limit without a loop
    share: float  # loops / texts
    low: float  # 95 % interval of the share
    high: float
    by_temperature: Mapping[str, int]  # loops
    examples: tuple[str, ...]  # ends of the first looping texts


@dataclass(frozen=True, kw_only=True)
class Loops(LoopCounts, MeasuredRecord):
    """The loop test of a checkpoint, compared with its source if the source was tested."""

    kind = "loops"
    file = "loops.json"
    created_by = "halfbyte loops {out} --against SRC"
    measured = "weights"

    temperatures: tuple[float, ...]
    tokens: int  # limit per text
    source: LoopCounts | None
    p: float | None  # p-value of the sign test against the source
    flagged: bool  # significantly worse than the source, or above the tolerated share
    level: Level
