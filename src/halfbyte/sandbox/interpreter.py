"""The Python that programs run on: the one under this environment, or the system's where a sandbox cannot see ours."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path

SYSTEM = (Path("/usr/lib"), Path("/usr/lib64"), Path("/usr/lib32"))  # libraries; no shared data, no local software
_SYSTEM_PYTHONS = (Path("/usr/bin/python3"), Path("/usr/local/bin/python3"))


@dataclass(frozen=True, slots=True)
class Interpreter:
    """An executable, and the folders it needs beside the system's libraries."""

    executable: Path
    folders: tuple[Path, ...]


def find_interpreter(*, user: int | None) -> Interpreter | None:
    """Return the first Python that `user` can read (None: whoever we are): a home of mode 700 hides what is in it."""
    own = Path(getattr(sys, "_base_executable", "") or sys.executable)
    for executable, prefix in [(own, Path(sys.base_prefix)), *((one, one.parent.parent) for one in _SYSTEM_PYTHONS)]:
        real, place = executable.resolve(), prefix.resolve()
        libraries = [place / name for name in ("lib", "lib64") if (place / name).is_dir()]
        needed = [folder.resolve() for folder in libraries if folder.resolve() not in SYSTEM]
        # The program finds its library by where it lies: an executable from elsewhere would look in vain.
        if real.is_relative_to(place) and all(can_read(path, user) for path in [real, *needed]):
            return Interpreter(real, tuple(dict.fromkeys(needed)))
    return None


def can_read(path: Path, user: int | None) -> bool:
    """Say whether a stranger (`user`) or we can reach and read this path."""
    if user is None:
        return os.access(path, os.R_OK)
    try:
        folders = all(folder.stat().st_mode & 0o001 for folder in path.parents)
        return folders and bool(path.stat().st_mode & 0o004)
    except OSError:
        return False
