"""Files that strangers wrote: a name may lead to a pipe that never ends, a few bytes may unfold to gigabytes.

Whoever reads one gets its bytes or an OSError, and of JSON a value or a ValueError; never a wait, never more memory
than a real file of its kind would need.
"""

from __future__ import annotations

import errno
import json
import math
import os
import stat
from collections.abc import Callable, Iterable
from itertools import chain
from pathlib import Path
from typing import Any, NoReturn

from halfbyte.machine.named_errors import naming

MOST_NBYTES = 1 << 28  # of one file that is read whole; the index of half a million tensors has 50 MB
MOST_DEPTH = 64  # a config has 6 levels; our own walks over what was read are recursive
MOST_BRACKETS = 4_000_000  # half a million tensors in one header have 1.5 million; `[],` unfolds to 24 times its size
MOST_COMMAS = 8_000_000

Pairs = list[tuple[str, Any]]
_NAMED, _HOLDS = {dict}, {dict, list}  # the types that json makes of brackets


def plain_bytes(path: Path, most: int = MOST_NBYTES) -> bytes:
    """Return what a plain file holds; OSError for a pipe, a device, a folder, and for more than `most` bytes."""
    # Without O_NONBLOCK, opening a pipe waits until somebody writes into it.
    file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with naming(path), open(file, "rb") as opened:  # noqa: PTH123 - a descriptor, not a path
        about = os.fstat(file)
        if not stat.S_ISREG(about.st_mode):
            raise OSError(errno.EINVAL, "it is not a plain file", str(path))
        if about.st_size > most:
            raise OSError(errno.EFBIG, f"it has {about.st_size:,} bytes, more than {most:,}", str(path))
        found = opened.read(about.st_size + 1)  # memory for what is there, and not for the most that could be
        if (
            len(found) > about.st_size
        ):  # it has grown meanwhile, or is one of the kernel's, which say that they are empty
            found += opened.read(most + 1 - len(found))
        if len(found) > most:
            raise OSError(errno.EFBIG, f"it has more than {most:,} bytes", str(path))
        return found


def plain_text(path: Path, most: int = MOST_NBYTES) -> str:
    """Return the text of a plain file; OSError as above, ValueError where it is not UTF-8."""
    return plain_bytes(path, most).decode("utf-8")


def parsed(raw: bytes | str, hook: Callable[[Pairs], Any] | None = None, *, finite: bool = False) -> Any:
    """Return the value that JSON spells; ValueError for all that is none, or that is out of all proportion.

    With `finite` it is one too for NaN, Infinity, and numbers that are read as such.
    """
    comma, square, curly = (",", "[", "{") if isinstance(raw, str) else (b",", b"[", b"{")
    if raw.count(square) + raw.count(curly) > MOST_BRACKETS or raw.count(comma) > MOST_COMMAS:  # type: ignore[arg-type]
        raise ValueError("it has more values than any real file of its kind")
    try:
        numbers: Any = {"parse_constant": _refuse_constant, "parse_float": _finite} if finite else {}
        found = json.loads(raw, object_pairs_hook=hook, **numbers)
    except RecursionError:
        raise ValueError("its brackets are nested too deep") from None
    if _deeper(found, MOST_DEPTH):
        raise ValueError(f"its brackets are nested more than {MOST_DEPTH} deep")
    return found


def read_json(path: Path, most: int = MOST_NBYTES, *, finite: bool = False) -> Any:
    """Return what a JSON file says; OSError or ValueError where it says nothing."""
    return parsed(plain_bytes(path, most), finite=finite)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(name)


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):  # 1e999 is read as infinity
        raise ValueError(text)
    return value


def without_doubles(pairs: Pairs) -> dict[str, Any]:
    """Refuse an object that names something twice: readers keep the last, and others would keep the first."""
    found = dict(pairs)
    if len(found) == len(pairs):
        return found
    seen: set[str] = set()
    for name, _ in pairs:
        if name in seen:
            raise DoubleError(name)
        seen.add(name)
    raise AssertionError


class DoubleError(ValueError):
    """A name that an object has twice."""

    def __init__(self, name: str) -> None:
        super().__init__(f"'{name}' is there twice")
        self.name = name


def _deeper(value: Any, most: int) -> bool:
    """Whether brackets are nested deeper than `most`, found level by level: a walk into the depth could overflow."""
    level: Iterable[Any] = [value]
    for _ in range(most + 1):
        held: list[Any] = [one for one in level if type(one) in _HOLDS]
        if not held:
            return False
        level = chain.from_iterable([one.values() if type(one) in _NAMED else one for one in held])
    return True
