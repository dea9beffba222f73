"""The file that takes an engine's log: never over anything else, and the log of an earlier start is kept.

The first line tells a log of ours from any other file. A lock tells one that an engine still writes: it belongs to the
open file, which the engine has inherited, and ends with it.
"""

from __future__ import annotations

import contextlib
import fcntl
import time
from itertools import count
from pathlib import Path
from typing import BinaryIO

from halfbyte.errors import UsageError

FIRST_LINE = "# the log of an engine that `halfbyte serve --run` started"
DEFAULT = Path("serve.log")
_ANOTHER = "name another file with --log"


def default_log(port: int) -> Path:
    """Return serve.log; where another engine writes it just now, one with the port in its name."""
    return Path(f"serve-{port}.log") if DEFAULT.is_file() and is_written(DEFAULT) else DEFAULT


def new_log(path: Path) -> BinaryIO:
    """Open a new log; one of an earlier start becomes PATH.1 (.2 and so on), any other file is refused."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists() or path.is_symlink():
            _move_away(path)
        file = path.open("xb", buffering=0)
    except OSError as error:
        what = f"the log cannot be written: {error.strerror or error}"
        raise UsageError(what, where=str(path), fix=_ANOTHER) from None
    with contextlib.suppress(OSError):  # a file system without locks
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    file.write(f"{FIRST_LINE}, {time.strftime('%Y-%m-%d %H:%M:%S')}\n".encode())
    return file


def _move_away(path: Path) -> None:
    """Give an earlier log the first free number; refuse what is none, or is still written."""
    if not path.is_file():
        raise UsageError("the log must be a file", where=str(path), fix=_ANOTHER)
    with path.open("rb") as file:
        begin = file.read(len(FIRST_LINE))
    if begin and begin != FIRST_LINE.encode():  # an empty file loses nothing
        what = "this file is no log of halfbyte's, and it stays as it is"
        raise UsageError(what, where=str(path), fix=_ANOTHER)
    if is_written(path):
        raise UsageError("another engine writes this log just now", where=str(path), fix=_ANOTHER)
    if not begin:
        path.unlink()
        return
    earlier = (path.with_name(f"{path.name}.{number}") for number in count(1))
    path.rename(next(one for one in earlier if not one.exists() and not one.is_symlink()))


def is_written(path: Path) -> bool:
    """Return whether an engine writes a log just now."""
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # a file system without locks
        return False
    return False
