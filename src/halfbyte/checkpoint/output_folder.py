"""The files of an output folder, its locks, and checks that a run may write there."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
from collections.abc import Collection, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

from halfbyte.checkpoint.atomic_write import PART, resumable_error
from halfbyte.checkpoint.untrusted_files import read_json
from halfbyte.errors import MachineError, UsageError
from halfbyte.ui.units import size

FOLDER = "halfbyte"  # in every output: plan, journal, statistics, reports
PLAN = "plan.json"  # source, recipe and expected shards
REDACTED = "redacted"  # in a published plan.json: local paths were removed from its recipe, which changes the hash
README = "README.md"  # copied from the source, then replaced by `halfbyte card`
SOURCE_README = "source-README.md"  # in FOLDER: the source's README after `halfbyte card` replaced it
LOOPS = "loops.json"  # result of the loop test of a pruned checkpoint
RELEASE = "release.json"  # stages, gates and verdict of a release
VERIFIED = "verified.json"  # hashes of verified source shards
HASHED = "hashed.json"  # cached hashes: a file is read again only if it changed
RELEASE_LOGS = "release"  # logs of a release, created before any checkpoint file


def read_plan(out: Path) -> dict[str, Any]:
    """Return the plan.json of an output folder."""
    path = out / FOLDER / PLAN
    try:
        plan: Any = read_json(path)
        named = isinstance(plan["fingerprint"], str) and isinstance(plan["recipe"]["name"], str)
        sized = all(type(nbytes) is int and nbytes >= 0 for nbytes in plan["shards"].values())
        if named and sized and isinstance(plan["parts"], dict):
            return cast("dict[str, Any]", plan)
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        if isinstance(error, OSError) and error.errno == errno.EIO:  # a disk error: do not advise removing the folder
            raise resumable_error(error, path) from None
    fix = "restore the file, or remove the folder and start again"
    raise UsageError("the plan of this folder cannot be read", where=str(path), fix=fix)


def refuse_nested(source: Path, out: Path) -> None:
    """Raise if the output is the source or inside it, also through a link, `..` or a bind mount."""
    target, folder = out.resolve(), source.resolve()
    what = None
    if _is_same(target, folder):
        what = "the output folder is the source"
    elif any(_is_same(above, folder) for above in target.parents):
        what = "the output folder is inside the source"
    if what is not None:
        fix = f"pass a folder outside the source, such as {folder.parent / f'{folder.name}-out'}"
        raise UsageError(what, where=str(out), fix=fix)


def _is_same(first: Path, second: Path) -> bool:
    try:
        return first == second or first.samefile(second)
    except OSError:  # one of the paths does not exist
        return False


def is_foreign(path: Path) -> bool:
    """Whether a path in an output folder is anything but a `halfbyte/` folder with only release logs."""
    return path.name != FOLDER or not path.is_dir() or has_whole_files(path, (RELEASE, RELEASE_LOGS))


def has_whole_files(folder: Path, but: Collection[str] = ()) -> bool:
    """Whether a folder has anything besides these names and partial files of a killed run."""
    return any(not path.name.endswith(PART) and path.name not in but for path in folder.iterdir())


def nearest(out: Path) -> Path:
    """Return the folder or its nearest existing parent."""
    return next(path for path in (out.absolute(), *out.absolute().parents) if path.exists())


@contextmanager
def without_parts(out: Path) -> Generator[None]:
    """Delete partial files if the run fails."""
    try:
        yield
    except BaseException:
        for part in out.rglob(f"*{PART}"):
            part.unlink(missing_ok=True)
        raise


@contextmanager
def locked_output(out: Path) -> Generator[None]:
    """Lock an output folder, so that two runs do not write the same shards."""
    with _locked(out / FOLDER, out, f"wait for it (halfbyte status {out} --watch), or pass another folder"):
        yield


@contextmanager
def locked_results(folder: Path) -> Generator[None]:
    """Lock a folder of statistics or benchmark results, which a second run would resume."""
    with _locked(folder, folder, "wait until it has finished, or pass another folder"):
        yield


@contextmanager
def locked_cache(folder: Path) -> Generator[None]:
    """Lock the cache folder of a source, because two runs together would exceed the cache limit."""
    with _locked(folder, folder.parent, "wait until it has finished, or pass another --cache-dir"):
        yield


@contextmanager
def _locked(locked: Path, where: Path, fix: str) -> Generator[None]:
    """Hold a folder's lock. The kernel releases the lock of a killed run."""
    locked.mkdir(parents=True, exist_ok=True)
    folder = os.open(locked, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError("another run is writing into this folder", where=str(where), fix=fix) from None
        yield
    finally:
        os.close(folder)


def refuse_unwritable(out: Path) -> None:
    """Raise if the output folder cannot be created."""
    existing = nearest(out)
    if not existing.is_dir():
        fix = "pass a new or empty folder"
        raise UsageError("a file exists at the output path", where=str(existing), fix=fix)
    if not os.access(existing, os.W_OK | os.X_OK):
        fix = "check the folder's permissions, or pass another folder"
        raise MachineError("no permission to write here", where=str(existing), fix=fix)


def refuse_full(out: Path, needed: int, reclaimed: int = 0, *, what_for: str = "the output") -> None:
    """Raise if the disk lacks space for `needed` bytes; `reclaimed` bytes are freed before the first write."""
    free = shutil.disk_usage(nearest(out)).free + reclaimed
    if free < needed:
        what = f"{what_for} needs {size(needed)}, the disk has {size(free)} free"
        raise MachineError(what, where=str(out), fix="free some space, or pass a folder on another disk")
