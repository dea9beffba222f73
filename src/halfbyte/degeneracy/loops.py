"""Loop check for prose."""

from __future__ import annotations

from halfbyte.degeneracy.watch import find_loop


def has_loop(text: str, *, cut: bool = False) -> bool:
    """Return whether any rule finds a loop; `cut`: the token limit ended the text, not the model."""
    return find_loop(text, "prose", cut=cut) is not None
