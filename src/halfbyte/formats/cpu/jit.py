"""`@kernel` and `@inlined`: numba with IEEE arithmetic, without the GIL, and with a cache that is never stale.

numba's cache checks the timestamp of the file that defines a function, but not of the files it inlines: after a change
of `scalars.py` it would keep running the old code. Therefore the cache folder is named by a hash of all sources.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path

import numba

_OPTIONS = {"nogil": True, "error_model": "numpy", "fastmath": False}


def _sources_digest():
    digest = hashlib.sha256()
    here = Path(__file__).parent
    for path in sorted([*here.glob("*.py"), *here.with_name("reference").glob("*.py")]):
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
    try:
        return numba.njit(cache=_CACHE is not None, **_OPTIONS, **options)(function)
    finally:
        numba.config.CACHE_DIR = before


def kernel(function):
    """Compile a function; it runs without the GIL."""
    return _compiled(function)


def inlined(function):
    """Compile a function into each of its callers."""
    return _compiled(function, inline="always")
