"""Escape untrusted text (file names, tensor names, server responses, model outputs) for terminals, JSON and shells.

It must not move the cursor, change colors, trigger terminal responses or reverse the text direction. Newlines, tabs
and zero-width joiners, which Persian and emoji need, are kept. API keys in the environment are redacted: some servers
echo a rejected key in a status line, a header or a body. Warnings and log lines of libraries, which Python prints
directly, get the same treatment.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shlex
import string
import warnings
from pathlib import Path
from typing import Any

# Control characters except tab and newline, line separators, direction marks, lone surrogates.
_UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")
_LONGEST = 1_500
_KEY_VARIABLE = re.compile(r"(?:TOKEN|KEY|SECRET|PASSWORD|PASSWD|CREDENTIALS?)$", re.IGNORECASE)
_SHORTEST_VALUE = 12  # shorter values are ordinary words that occur in other text
_REDACTED = "***"
_UNQUOTED = frozenset(string.ascii_letters + string.digits + " ./_-")


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


def key_variables() -> dict[str, str]:
    """Return the environment variables that hold keys, by name."""
    named = {name: value.strip() for name, value in os.environ.items() if _KEY_VARIABLE.search(name)}
    return {name: value for name, value in named.items() if len(value) >= _SHORTEST_VALUE and "/" not in value[:1]}


def without_key_values(text: str) -> str:
    """Replace the value of every key variable in a text with `***`."""
    for value in key_variables().values():
        text = text.replace(value, _REDACTED)
    return text


def pasted(path: Path | str) -> str:
    """Quote a path as one shell word that is not parsed as an option."""
    text = str(path)
    word = f"./{text}" if text.startswith("-") else text
    if word.isprintable():
        return shlex.quote(word)
    # Only $'...' can quote non-printable characters visibly.
    shown = "".join(chr(byte) if chr(byte) in _UNQUOTED else f"\\x{byte:02x}" for byte in os.fsencode(word))
    return f"$'{shown}'"


def escape_library_output() -> None:
    """Escape all warnings and log records of this process, and remove API keys from them."""
    format_warning, make_record = warnings.formatwarning, logging.getLogRecordFactory()

    def safe_warning(*args: Any, **options: Any) -> str:
        return harmless(format_warning(*args, **options))

    def safe_record(*args: Any, **options: Any) -> logging.LogRecord:
        record = make_record(*args, **options)
        with contextlib.suppress(TypeError, ValueError, KeyError):  # logging itself reports mismatched arguments
            record.msg, record.args = harmless(record.getMessage()), None
        return record

    warnings.formatwarning = safe_warning
    logging.setLogRecordFactory(safe_record)
