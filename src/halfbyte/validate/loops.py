"""Whether a text that a model wrote in prose repeats itself without end."""

from __future__ import annotations

from halfbyte.validate.probe.degeneracy.watch import find_loop


def has_loop(text: str) -> bool:
    """Whether any rule finds a loop, at the end of the text or before."""
    return find_loop(text, "prose") is not None
