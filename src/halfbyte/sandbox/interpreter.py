"""Find the Python that runs programs: this environment's base, or the system's if the sandbox cannot read that."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path

SYSTEM = (Path("/usr/lib"), Path("/usr/lib64"), Path("/usr/lib32"))  # libraries only: no shared data, no local software
_SYSTEM_PYTHONS = (Path("/usr/bin/python3"), Path("/usr/local/bin/python3"))


@dataclass(frozen=True, slots=True)
class Interpreter:
    """An executable and the folders it needs besides the system libraries."""

    executable: Path
    folders: tuple[Path, ...]


def find_interpreter(*, user: int | None) -> Interpreter | None:
    """Return the first Python that `user` (None: the current user) can read; a home with mode 700 hides its files."""
    own = Path(getattr(sys, "_base_executable", "") or sys.executable)
    for executable, prefix in [(own, Path(sys.base_prefix)), *((path, path.parent.parent) for path in _SYSTEM_PYTHONS)]:
        real, root = executable.resolve(), prefix.resolve()
        libraries = [root / name for name in ("lib", "lib64") if (root / name).is_dir()]
        needed = [folder.resolve() for folder in libraries if folder.resolve() not in SYSTEM]
        # Python finds its standard library relative to the executable, so both must be below the same prefix.
        if real.is_relative_to(root) and all(can_read(path, user) for path in [real, *needed]):
            return Interpreter(real, tuple(dict.fromkeys(needed)))
    return None


def can_read(path: Path, user: int | None) -> bool:
    """Whether `user` (None: the current user) can reach and read this path."""
    if user is None:
        return os.access(path, os.R_OK)
    try:
        folders = all(folder.stat().st_mode & 0o001 for folder in path.parents)
        return folders and bool(path.stat().st_mode & 0o004)
    except OSError:
        return False
