"""Hashing as it is watched: a bar on a terminal, and elsewhere a line now and then with rate and time left."""

from __future__ import annotations

from collections.abc import Callable

from halfbyte.publish.hashing import Step
from halfbyte.show import duration
from halfbyte.terminal.console import Bar
from halfbyte.terminal.units import size

_LINE_EVERY_S = 10.0
_SHORT_S = 2.0  # what is done sooner needs no lines


def watched(bar: Bar, verb: str) -> Callable[[Step], None]:
    """Return what shows where hashing is."""
    said = 0.0

    def show(step: Step) -> None:
        nonlocal said
        bar.at(step.done_nbytes, step.all_nbytes)
        if step.seconds - said >= (_LINE_EVERY_S if said else _SHORT_S):
            said = step.seconds
            bar.step(line(verb, step), step.done_nbytes, step.all_nbytes)

    return show


def line(verb: str, step: Step) -> str:
    """Return where hashing is, in words."""
    rate = step.done_nbytes / step.seconds if step.seconds else 0.0
    left = f"{duration((step.all_nbytes - step.done_nbytes) / rate)} left" if rate else "time left unknown"
    return f"{verb}  {size(step.done_nbytes)} of {size(step.all_nbytes)}  {size(int(rate))}/s, {left}"
