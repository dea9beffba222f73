"""Cancel streams as soon as they loop: a loop that runs to the end of the context costs minutes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from halfbyte.degeneracy.rules import KindOfText
from halfbyte.degeneracy.watch import LoopWatch, find_loop
from halfbyte.probe.answers import Answer
from halfbyte.probe.client import Watch
from halfbyte.probe.kinds import Shown


def cancel_on_loop(kind: KindOfText = "prose") -> Watch:
    """Return a watch that cancels a stream when its content or its reasoning loops."""
    watches = {"content": LoopWatch(kind), "reasoning": LoopWatch(kind)}

    def watch(chunk: Mapping[str, Any]) -> str | None:
        for name, reader in watches.items():
            loop = reader.feed(str(chunk.get(name) or ""))
            if loop is not None:
                return f"loop in the {name}: {loop.sentence}"
        return None

    return watch


def loops(answer: Answer, kind: KindOfText = "prose") -> list[Shown]:
    """Return the loops in the content and the reasoning of an answer."""
    shown: list[Shown] = []
    for name, text in answer.written:
        loop = find_loop(text, kind, cut=answer.cut_in == name)
        if loop is not None:
            shown.append(Shown(text, f"loop: in the {name}, {loop.sentence}", loop.start, loop.end, answer.id))
    return shown
