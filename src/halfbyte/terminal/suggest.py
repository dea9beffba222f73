"""The sentence after a wrong name: the nearest right one, or all of them."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(word: str, choices: Iterable[str]) -> str | None:
    """Return the choice that was probably meant, if one is near."""
    return next(iter(difflib.get_close_matches(word, list(choices), n=1, cutoff=0.6)), None)


def did_you_mean(word: str, choices: Iterable[str]) -> str:
    """Return "did you mean 'x'?" where something is near, else the list of choices."""
    known = list(choices)
    near = nearest(word, known)
    return f"did you mean '{near}'?" if near else "choose one of " + ", ".join(known)
