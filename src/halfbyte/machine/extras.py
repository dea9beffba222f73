"""What to type where an optional library is missing: the libraries themselves, because halfbyte is on no index."""

from __future__ import annotations

import shlex
from importlib.metadata import PackageNotFoundError, requires


def install_extra(extra: str) -> str:
    """Return the command that installs what an extra of halfbyte stands for, with the bounds of its metadata."""
    from packaging.requirements import Requirement  # noqa: PLC0415 - only where something is missing

    try:
        known = [Requirement(text) for text in requires("halfbyte") or ()]
    except PackageNotFoundError:  # a source tree that nobody installed
        return f"pip install -e '.[{extra}]' in a checkout of halfbyte"
    words: list[str] = []
    for one in known:
        marker = one.marker  # without which it is needed always; others name a system too
        if marker is not None and marker.evaluate({"extra": extra}) and not marker.evaluate({"extra": ""}):
            extras = f"[{','.join(sorted(one.extras))}]" if one.extras else ""
            words.append(f"{one.name}{extras}{one.specifier}")
    return f"pip install {shlex.join(words)}"
