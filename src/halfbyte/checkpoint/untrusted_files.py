"""Read untrusted files: a path may be a pipe that blocks, and a few bytes of JSON may expand to gigabytes.

Reads return the bytes or raise OSError; JSON parsing returns a value or raises ValueError. Neither blocks or uses more
memory than a genuine file would need.
"""

from __future__ import annotations

import errno
import json
import math
import os
import stat
from collections.abc import Callable, Iterable, Mapping
from itertools import chain
from pathlib import Path
from typing import Any, NoReturn, cast

from halfbyte.machine.os_errors import adding_filename

MOST_NBYTES = 1 << 28  # per file; the index of half a million tensors has 50 MB
MOST_DEPTH = 64  # a config has 6 levels; our own walks over parsed values are recursive
MOST_BRACKETS = 4_000_000  # half a million tensors in one header have 1.5 million; `[],` expands to 24 times its size
MOST_COMMAS = 8_000_000

Pairs = list[tuple[str, Any]]
_MAPPINGS, _CONTAINERS = {dict}, {dict, list}  # the container types that json returns


def has_bytes(path: Path, data: bytes) -> bool:
    """Whether a regular file has exactly these bytes; False if it cannot be read."""
    try:
        return plain_bytes(path, len(data)) == data
    except OSError:
        return False


def plain_bytes(path: Path, most: int = MOST_NBYTES) -> bytes:
    """Return the bytes of a regular file; OSError for a pipe, device or folder, or above `most` bytes."""
    # Without O_NONBLOCK, opening a pipe blocks until a writer opens it.
    file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with adding_filename(path), open(file, "rb") as opened:  # noqa: PTH123 - a descriptor, not a path
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file", str(path))
        if status.st_size > most:
            raise OSError(errno.EFBIG, f"it has {status.st_size:,} bytes, more than {most:,}", str(path))
        data = opened.read(status.st_size + 1)  # allocates for the actual size, not for `most`
        if len(data) > status.st_size:  # it has grown, or is a kernel file, which reports size 0
            data += opened.read(most + 1 - len(data))
        if len(data) > most:
            raise OSError(errno.EFBIG, f"it has more than {most:,} bytes", str(path))
        return data


def plain_text(path: Path, most: int = MOST_NBYTES) -> str:
    """Return the text of a regular file; OSError as for `plain_bytes`, ValueError if it is not UTF-8."""
    return plain_bytes(path, most).decode("utf-8")


def parsed(raw: bytes | str, hook: Callable[[Pairs], Any] | None = None, *, finite: bool = False) -> Any:
    """Parse JSON; ValueError if it is invalid or has implausibly many or deeply nested values.

    With `finite`, NaN, Infinity and numbers that overflow to infinity are also errors.
    """
    comma, square, curly = (",", "[", "{") if isinstance(raw, str) else (b",", b"[", b"{")
    if raw.count(square) + raw.count(curly) > MOST_BRACKETS or raw.count(comma) > MOST_COMMAS:  # type: ignore[arg-type]
        raise ValueError("it has more values than any real file of its kind")
    try:
        numbers: Any = {"parse_constant": _refuse_constant, "parse_float": _finite} if finite else {}
        value = json.loads(raw, object_pairs_hook=hook, **numbers)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if _deeper(value, MOST_DEPTH):
        raise ValueError(f"it is nested more than {MOST_DEPTH} levels deep")
    return value


def read_json(path: Path, most: int = MOST_NBYTES, *, finite: bool = False) -> Any:
    """Parse a JSON file; OSError or ValueError if it cannot be read or parsed."""
    return parsed(plain_bytes(path, most), finite=finite)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(name)


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):  # 1e999 is read as infinity
        raise ValueError(text)
    return value


def reject_duplicate_keys(pairs: Pairs) -> dict[str, Any]:
    """Build a dict from JSON pairs; raise on a duplicate key, which parsers resolve differently."""
    merged = dict(pairs)
    if len(merged) == len(pairs):
        return merged
    seen: set[str] = set()
    for name, _ in pairs:
        if name in seen:
            raise DuplicateKeyError(name)
        seen.add(name)
    raise AssertionError


class DuplicateKeyError(ValueError):
    """A duplicate key in a JSON object."""

    def __init__(self, name: str) -> None:
        super().__init__(f"duplicate key '{name}'")
        self.name = name


def _deeper(value: Any, most: int) -> bool:
    """Whether containers are nested deeper than `most`; checked level by level, because recursion could overflow."""
    level: Iterable[Any] = [value]
    for _ in range(most + 1):
        containers: list[Any] = [item for item in level if type(item) in _CONTAINERS]
        if not containers:
            return False
        level = chain.from_iterable([item.values() if type(item) in _MAPPINGS else item for item in containers])
    return True


def json_object(path: Path) -> Mapping[str, Any]:
    """Return the JSON object in a file; empty if the file is missing, invalid or not an object."""
    try:
        value: Any = read_json(path)
    except (OSError, ValueError):
        return {}
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}
