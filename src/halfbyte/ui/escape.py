"""Escape untrusted text for a terminal: file names, tensor names, server responses, model outputs.

It must not move the cursor, change colors, trigger terminal responses or reverse the text direction. Newlines, tabs
and zero-width joiners, which Persian and emoji need, are kept.
"""

from __future__ import annotations

import re

from halfbyte.ui.api_keys import without_key_values

# Control characters except tab and newline, line separators, direction marks, lone surrogates.
_UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")

_LONGEST = 1_500


def harmless(text: str) -> str:
    """Escape characters that a terminal would interpret or cannot display. Remove API keys."""
    return _UNSAFE.sub(_escaped, without_key_values(text))


def shortened(text: str) -> str:
    """Elide the middle of a long text."""
    if len(text) <= _LONGEST:
        return text
    return f"{text[: _LONGEST // 2]} ... {len(text) - _LONGEST:,} characters ... {text[-_LONGEST // 2 :]}"


def harmless_json(text: str) -> str:
    """Escape such characters in JSON text. They occur only in strings, so the parsed value does not change."""
    return _UNSAFE.sub(lambda match: f"\\u{ord(match[0]):04x}", without_key_values(text))


def _escaped(match: re.Match[str]) -> str:
    return match[0].encode("unicode_escape", "surrogatepass").decode()
