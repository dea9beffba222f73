"""Engine log files: keep the logs of earlier starts and never overwrite another file.

The first line identifies a log that halfbyte wrote. A lock on the open file, inherited by the engine, marks a log that
is still being written.
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
_ANOTHER = "choose another file with --log"


def default_log(port: int) -> Path:
    """Return serve.log, or serve-PORT.log if another engine is writing serve.log."""
    return Path(f"serve-{port}.log") if DEFAULT.is_file() and is_written(DEFAULT) else DEFAULT


def new_log(path: Path) -> BinaryIO:
    """Open a new log; rename an earlier log to PATH.1 (.2 and so on) and refuse to replace any other file."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists() or path.is_symlink():
            _move_away(path)
        file = path.open("xb", buffering=0)
    except OSError as error:
        what = f"cannot write the log: {error.strerror or error}"
        raise UsageError(what, where=str(path), fix=_ANOTHER) from None
    with contextlib.suppress(OSError):  # a file system without locks
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    file.write(f"{FIRST_LINE}, {time.strftime('%Y-%m-%d %H:%M:%S')}\n".encode())
    return file


def _move_away(path: Path) -> None:
    """Rename an earlier log to the first free number; refuse other files and logs that are still being written."""
    if not path.is_file():
        raise UsageError("the log must be a file", where=str(path), fix=_ANOTHER)
    with path.open("rb") as file:
        start = file.read(len(FIRST_LINE))
    if start and start != FIRST_LINE.encode():  # an empty file may be replaced
        what = "this file is not a log of halfbyte and will not be overwritten"
        raise UsageError(what, where=str(path), fix=_ANOTHER)
    if is_written(path):
        raise UsageError("another engine is writing this log", where=str(path), fix=_ANOTHER)
    if not start:
        path.unlink()
        return
    earlier = (path.with_name(f"{path.name}.{number}") for number in count(1))
    path.rename(next(target for target in earlier if not target.exists() and not target.is_symlink()))


def is_written(path: Path) -> bool:
    """Return whether an engine is writing a log."""
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # a file system without locks
        return False
    return False
