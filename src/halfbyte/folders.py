"""What may lie in an output folder, and who may write there."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
from collections.abc import Collection, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

from halfbyte.errors import MachineError, UsageError
from halfbyte.source.foreign import read_json
from halfbyte.write import PART, cannot_go_on

FOLDER = "halfbyte"  # in every output: plan, journal, statistics, findings
PLAN = "plan.json"  # what was to be made, of what, and how
REDACTED = "redacted"  # in a published plan.json: local paths were taken out of its recipe, which has another hash now
README = "README.md"  # the source's, and after `halfbyte card` our own
SOURCE_README = "source-README.md"  # in the folder above: the source's, once ours stands in its place
LOOPS = "loops.json"  # what the loop test of a pruned checkpoint found
RELEASE = "release.json"  # stages, gates and verdict of a release
RELEASE_LOGS = "release"  # its logs, which are there before the first byte of a checkpoint is


def read_plan(out: Path) -> dict[str, Any]:
    """Return the plan.json of an output folder."""
    path = out / FOLDER / PLAN
    try:
        found: Any = read_json(path)
        named = isinstance(found["fingerprint"], str) and isinstance(found["recipe"]["name"], str)
        sized = all(type(nbytes) is int and nbytes >= 0 for nbytes in found["shards"].values())
        if named and sized and isinstance(found["parts"], dict):
            return cast("dict[str, Any]", found)
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        if isinstance(error, OSError) and error.errno == errno.EIO:  # the disk's fault: nothing is to be removed
            raise cannot_go_on(error, path) from None
    fix = "restore the file, or remove the folder and begin anew"
    raise UsageError("the plan of this folder cannot be read", where=str(path), fix=fix)


def refuse_nested(source: Path, out: Path) -> None:
    """Refuse to write into what is read."""
    inner, outer = out.resolve(), source.resolve()
    if inner == outer or inner.is_relative_to(outer):
        raise UsageError("the output folder lies inside the source", where=str(out), fix="give a folder elsewhere")


def is_foreign(path: Path) -> bool:
    """Whether something lies in an output folder that no run of ours left before its first byte."""
    return path.name != FOLDER or not path.is_dir() or has_whole_files(path, (RELEASE, RELEASE_LOGS))


def has_whole_files(folder: Path, but: Collection[str] = ()) -> bool:
    """Whether anything lies in a folder but these names and what a killed run left half-written."""
    return any(not path.name.endswith(PART) and path.name not in but for path in folder.iterdir())


def nearest(out: Path) -> Path:
    """Return the folder, or the nearest one above it that exists."""
    return next(path for path in (out.absolute(), *out.absolute().parents) if path.exists())


@contextmanager
def without_parts(out: Path) -> Generator[None]:
    """Whatever ends a run, nothing half-written stays."""
    try:
        yield
    except BaseException:
        for part in out.rglob(f"*{PART}"):
            part.unlink(missing_ok=True)
        raise


@contextmanager
def alone(out: Path) -> Generator[None]:
    """One run at a time in an output folder: two would write into each other's shards."""
    with _locked(out / FOLDER, out, f"wait for it (halfbyte status {out} --watch), or give another folder"):
        yield


@contextmanager
def alone_measuring(folder: Path) -> Generator[None]:
    """One run at a time in a folder of statistics or speeds: what one has finished another would go on with."""
    with _locked(folder, folder, "wait until it has ended, or give another folder"):
        yield


@contextmanager
def alone_fetching(folder: Path) -> Generator[None]:
    """One run at a time fetches the shards of a source into a folder: two would hold more than each may."""
    with _locked(folder, folder.parent, "wait until it has ended, or give another --cache-dir"):
        yield


@contextmanager
def _locked(held: Path, where: Path, fix: str) -> Generator[None]:
    """Hold a folder's lock. A killed run's dies with it."""
    held.mkdir(parents=True, exist_ok=True)
    folder = os.open(held, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError("another run is writing into this folder", where=str(where), fix=fix) from None
        yield
    finally:
        os.close(folder)


def refuse_unwritable(out: Path) -> None:
    """Refuse a place where no folder can be made."""
    existing = nearest(out)
    if not existing.is_dir():
        fix = "give a folder that does not exist yet, or an empty one"
        raise UsageError("the output lies where a file is", where=str(existing), fix=fix)
    if not os.access(existing, os.W_OK | os.X_OK):
        fix = "check the folder's permissions, or give a folder elsewhere"
        raise MachineError("no permission to write here", where=str(existing), fix=fix)


def refuse_full(out: Path, needed: int, reclaimed: int = 0, *, what_for: str = "the output") -> None:
    """Refuse a disk without room for so many bytes; what is reclaimed goes before the first is written."""
    free = shutil.disk_usage(nearest(out)).free + reclaimed
    if free < needed:
        what = f"{what_for} needs {needed / 1e9:,.1f} GB, the disk has {free / 1e9:,.1f} GB free"
        raise MachineError(what, where=str(out), fix="free some space, or give a folder on another disk")
