"""Suggest the nearest valid name, or list all of them."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(word: str, choices: Iterable[str]) -> str | None:
    """Return the closest choice, or None if no choice is close."""
    return next(iter(difflib.get_close_matches(word, list(choices), n=1, cutoff=0.6)), None)


def containing(words: str, choices: Iterable[str]) -> list[str]:
    """Return the choices that contain every one of the dash-separated words."""
    wanted = words.lower().split("-")
    return [choice for choice in choices if all(word in choice.lower() for word in wanted)]


def did_you_mean(word: str, choices: Iterable[str]) -> str:
    """Return "did you mean 'x'?", or the list of choices if no choice is close."""
    known = list(choices)
    near = nearest(word, known)
    return f"did you mean '{near}'?" if near else "choose one of " + ", ".join(known)
