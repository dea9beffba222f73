"""Streams that are hung up as soon as they loop: a loop that runs to the end of the context costs minutes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from halfbyte.validate.probe.answers import Answer
from halfbyte.validate.probe.client import Watch
from halfbyte.validate.probe.degeneracy.defect import KindOfText
from halfbyte.validate.probe.degeneracy.watch import LoopWatch, find_loop
from halfbyte.validate.probe.kinds import Shown


def until_it_loops(kind: KindOfText = "prose") -> Watch:
    """Return what reads the chunks of one stream, content and reasoning apart, and says when to hang up."""
    watches = {"content": LoopWatch(kind), "reasoning": LoopWatch(kind)}

    def watch(chunk: Mapping[str, Any]) -> str | None:
        for name, reader in watches.items():
            loop = reader.feed(str(chunk.get(name) or ""))
            if loop is not None:
                return f"loop in the {name}: {loop.sentence}"
        return None

    return watch


def loops(answer: Answer, kind: KindOfText = "prose") -> list[Shown]:
    """Return the loop of an answer, in its content or in its reasoning; the same that the watch has seen."""
    found: list[Shown] = []
    for name, text in (("content", answer.text), ("reasoning", answer.reasoning or "")):
        loop = find_loop(text, kind)
        if loop is not None:
            found.append(Shown(text, f"loop: in the {name}, {loop.sentence}", loop.start, loop.end, answer.id))
    return found
