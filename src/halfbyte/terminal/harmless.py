"""What strangers wrote, on a terminal: file names, tensor names, answers of servers, texts of models.

Nothing in it may move the cursor, change colours, answer a query, or turn a line around. Lines and tabs stay, and the
joiners that Persian and emoji are written with.
"""

from __future__ import annotations

import re

from halfbyte.terminal.keys import without_key_values

# Controls but for tab and newline, separators of lines, marks of direction, halves of surrogate pairs.
_ACTS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")

_MOST = 1_500


def harmless(text: str) -> str:
    """Spell out what a terminal would act on, or could not show at all; keys that a server repeated are left out."""
    return _ACTS.sub(_spelled, without_key_values(text))


def shortened(text: str) -> str:
    """Leave out the middle of a text that nobody reads to its end: a name may have a megabyte."""
    if len(text) <= _MOST:
        return text
    return f"{text[: _MOST // 2]} ... {len(text) - _MOST:,} characters ... {text[-_MOST // 2 :]}"


def harmless_json(text: str) -> str:
    """The same in JSON, which stays the JSON that it was: such characters occur in strings only."""
    return _ACTS.sub(lambda found: f"\\u{ord(found[0]):04x}", without_key_values(text))


def _spelled(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape", "surrogatepass").decode()
