"""Quote paths for shell commands."""

from __future__ import annotations

import os
import shlex
import string
from pathlib import Path

_PLAIN = frozenset(string.ascii_letters + string.digits + " ./_-")


def pasted(path: Path | str) -> str:
    """Quote a path as one shell word that is not parsed as an option."""
    text = str(path)
    word = f"./{text}" if text.startswith("-") else text
    if word.isprintable():
        return shlex.quote(word)
    # Only $'...' can quote non-printable characters visibly.
    shown = "".join(chr(byte) if chr(byte) in _PLAIN else f"\\x{byte:02x}" for byte in os.fsencode(word))
    return f"$'{shown}'"
