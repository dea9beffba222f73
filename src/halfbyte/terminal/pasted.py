"""Words for a hint that is pasted into a shell: it must run as what it says, whatever a folder is named."""

from __future__ import annotations

import os
import shlex
import string
from pathlib import Path

_PLAIN = frozenset(string.ascii_letters + string.digits + " ./_-")


def pasted(path: Path | str) -> str:
    """Return a path as one word of a shell's command that no program takes for an option."""
    text = str(path)
    word = f"./{text}" if text.startswith("-") else text
    if word.isprintable():
        return shlex.quote(word)
    # $'...' is the only quoting that shows what cannot be seen.
    shown = "".join(chr(byte) if chr(byte) in _PLAIN else f"\\x{byte:02x}" for byte in os.fsencode(word))
    return f"$'{shown}'"
