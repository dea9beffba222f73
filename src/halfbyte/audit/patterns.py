"""Regular expressions from a checkpoint's config: some take longer than the universe, and Python cannot stop them.

`((a+)+)+!` doubles its time with each letter. Real lists have at most two stars a pattern, none inside another.
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
_FEW = 4  # a repetition of a handful is none


@lru_cache(maxsize=4096)
def compiled(pattern: str) -> re.Pattern[str] | None:
    """Return a regular expression that ends soon on any name; None for one that is none, or that may not end."""
    if len(pattern) > _MOST_CHARACTERS:
        return None
    try:
        stars = _stars(cast("Any", parser).parse(pattern), inside=False)
        return re.compile(pattern) if stars <= _MOST_STARS else None
    except (re.error, OverflowError, RecursionError, _NestedError):
        return None


class _NestedError(Exception):
    """A repetition or a choice inside a repetition."""


def _stars(tree: Any, *, inside: bool) -> int:
    """Count what can repeat without end."""
    found = 0
    for code, argument in tree:
        if code in _REPEATS:
            least, most, body = argument
            repeats = most - least > _FEW
            if inside and most > least:
                raise _NestedError
            found += repeats + _stars(body, inside=inside or most > _FEW)
        elif code is codes.BRANCH:
            if inside:
                raise _NestedError
            found += sum(_stars(one, inside=inside) for one in argument[1])
        else:
            parts = cast("tuple[Any, ...]", argument if isinstance(argument, tuple) else (argument,))
            found += sum(_stars(one, inside=inside) for one in parts if isinstance(one, _Tree))
    return found
