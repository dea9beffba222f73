"""`@kernel` and `@inlined`: numba with IEEE arithmetic, without the GIL, and with a cache that is never stale.

numba's cache checks the timestamp of the file that defines a function, but not of the files it inlines: after a change
of `scalars.py` it would keep running the old code. Therefore the cache folder is named by a hash of all kernel sources.
Kernels in other folders work, but are not cached.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path

import numba

_OPTIONS = {"nogil": True, "error_model": "numpy", "fastmath": False}
_HERE = Path(__file__).parent
_SOURCES = (_HERE, _HERE.parents[1] / "reference")  # kernels, and the tables they compile in


def _sources_digest():
    digest = hashlib.sha256()
    for path in sorted(path for folder in _SOURCES for path in folder.rglob("*.py")):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def _cache_folder():
    """Return a writable folder for compiled kernels, or None, in which case every process compiles them."""
    home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    try:
        base = Path(os.environ.get("NUMBA_CACHE_DIR") or Path(home).expanduser() / "halfbyte" / "kernels")
        folder = base / _sources_digest()
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return str(folder)
    except (OSError, RuntimeError):  # RuntimeError: no home directory
        return None


_CACHE = _cache_folder()


def _compiled(function, **options):
    before = numba.config.CACHE_DIR
    numba.config.CACHE_DIR = (
        _CACHE or before
    )  # read when a function is decorated; kernels of other packages are unaffected
    hashed = any(folder in Path(function.__code__.co_filename).parents for folder in _SOURCES)
    try:
        return numba.njit(cache=_CACHE is not None and hashed, **_OPTIONS, **options)(function)
    finally:
        numba.config.CACHE_DIR = before


def kernel(function):
    """Compile a function; it runs without the GIL."""
    return _compiled(function)


def inlined(function):
    """Compile a function into each of its callers."""
    return _compiled(function, inline="always")
