"""Compile regular expressions from untrusted configs, rejecting those with exponential run time.

The time of `((a+)+)+!` doubles with each letter, and Python cannot interrupt a match. Real ignore lists have at most
two stars per pattern, not nested.
"""

from __future__ import annotations

import re
from functools import lru_cache
from re import _constants as codes  # pyright: ignore[reportAttributeAccessIssue, reportUnknownVariableType]
from re import _parser as parser  # pyright: ignore[reportAttributeAccessIssue, reportUnknownVariableType]
from typing import Any, cast

_MOST_CHARACTERS = 2_000
_MOST_STARS = 4
_REPEATS = frozenset(cast("Any", (codes.MAX_REPEAT, codes.MIN_REPEAT, codes.POSSESSIVE_REPEAT)))
_Tree = cast("Any", parser).SubPattern
_FEW = 4  # repetitions up to this count are harmless


@lru_cache(maxsize=4096)
def compiled(pattern: str) -> re.Pattern[str] | None:
    """Compile a pattern; None if it is invalid or may take exponential time."""
    if len(pattern) > _MOST_CHARACTERS:
        return None
    try:
        stars = _stars(cast("Any", parser).parse(pattern), inside=False)
        return re.compile(pattern) if stars <= _MOST_STARS else None
    except (re.error, OverflowError, RecursionError, _NestedError):
        return None


class _NestedError(Exception):
    """Raised for a repetition or alternation inside a repetition."""


def _stars(tree: Any, *, inside: bool) -> int:
    """Count the unbounded repetitions."""
    stars = 0
    for code, argument in tree:
        if code in _REPEATS:
            least, most, body = argument
            repeats = most - least > _FEW
            if inside and most > least:
                raise _NestedError
            stars += repeats + _stars(body, inside=inside or most > _FEW)
        elif code is codes.BRANCH:
            if inside:
                raise _NestedError
            stars += sum(_stars(branch, inside=inside) for branch in argument[1])
        else:
            parts = cast("tuple[Any, ...]", argument if isinstance(argument, tuple) else (argument,))
            stars += sum(_stars(part, inside=inside) for part in parts if isinstance(part, _Tree))
    return stars
