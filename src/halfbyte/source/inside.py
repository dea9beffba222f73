"""Files of a checkpoint's folder, and no others: a link that leads away would put a stranger's choice of our files into
what is published.

A link can be put there between a check and its use. So what counts is where the opened file lies, not what its name
led to before.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from halfbyte.errors import CheckpointError
from halfbyte.machine.named_errors import naming
from halfbyte.source.known_hashes import hub_blob

_OPENED = Path("/proc/self/fd")


def check_inside(root: Path, file: Path) -> None:
    """Refuse a link that leaves the folder."""
    # The Hub's cache keeps files as links from snapshots/REVISION into blobs/ beside it.
    try:
        inside = (root / file).resolve().is_relative_to(root.resolve())
    except (OSError, RuntimeError):  # links in a circle
        raise CheckpointError(f"'{file}' is a link to itself", where=str(root), fix="download it again") from None
    if not inside and hub_blob(root, file) is None:
        raise _leaves(root, file)


def open_inside(root: Path, file: Path) -> int:
    """Open a plain file of the folder for reading; refuse what lies elsewhere by the time that it is open."""
    check_inside(root, file)
    try:
        # Without O_NONBLOCK, opening a pipe waits until somebody writes into it.
        opened = os.open(root / file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise CheckpointError(f"'{file}' is missing", where=str(root), fix="download it again") from None
    except OSError as error:
        what = f"cannot read '{file}': {error.strerror}"
        raise CheckpointError(what, where=str(root), fix="check the file and its permissions") from None
    try:
        if not stat.S_ISREG(os.fstat(opened).st_mode):
            raise CheckpointError(f"'{file}' is not a plain file", where=str(root), fix="download it again")
        if _OPENED.is_dir() and not _is_inside(root, file, (_OPENED / str(opened)).readlink()):
            raise _leaves(root, file)
    except BaseException:
        os.close(opened)
        raise
    return opened


def read_inside(root: Path, file: Path) -> bytes:
    """Return all of a small file of the folder."""
    with naming(root / file), open(open_inside(root, file), "rb") as opened:
        return opened.read()


def _is_inside(root: Path, file: Path, real: Path) -> bool:
    if real.is_relative_to(root.resolve()):
        return True
    return hub_blob(root, file) is not None and real == (root / file).resolve()


def _leaves(root: Path, file: Path) -> CheckpointError:
    fix = "copy the file into the folder, or give the folder it lies in"
    return CheckpointError(f"'{file}' is a link that leaves the folder", where=str(root), fix=fix)
