"""Open only files inside a checkpoint folder, so that a symlink cannot pull other local files into an output.

A symlink can be swapped between check and use, so the check is made on the path of the opened file descriptor.
"""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path

from halfbyte.errors import CheckpointError
from halfbyte.machine.os_errors import adding_filename

_OPENED = Path("/proc/self/fd")
HUB_REPOSITORY = re.compile("models--.+")  # a repository's folder in the Hub's cache
_ETAG = re.compile("[0-9a-f]{40}|[0-9a-f]{64}")  # Git's SHA-1 of a small file, or the SHA-256 of a large one
_XET_HASH = re.compile("[0-9a-f]{64}")
_SHARED_MARKER = ".huggingface-shared-blobs"


def check_inside(root: Path, file: Path) -> None:
    """Raise if a file is a link to a path outside the folder."""
    # The Hub's cache stores files as links from snapshots/REVISION to blobs/.
    try:
        inside = (root / file).resolve().is_relative_to(root.resolve())
    except (OSError, RuntimeError):  # a symlink loop
        raise CheckpointError(f"'{file}' is a link to itself", where=str(root), fix="download it again") from None
    if not inside and hub_blob(root, file) is None:
        raise _leaves(root, file)


def open_inside(root: Path, file: Path) -> int:
    """Open a regular file of the folder for reading; raise if the opened file is outside the folder."""
    check_inside(root, file)
    try:
        # Without O_NONBLOCK, opening a pipe blocks until a writer opens it.
        opened = os.open(root / file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise CheckpointError(f"'{file}' is missing", where=str(root), fix="download it again") from None
    except OSError as error:
        what = f"cannot read '{file}': {error.strerror}"
        raise CheckpointError(what, where=str(root), fix="check the file and its permissions") from None
    try:
        if not stat.S_ISREG(os.fstat(opened).st_mode):
            raise CheckpointError(f"'{file}' is not a regular file", where=str(root), fix="download it again")
        if _OPENED.is_dir() and not _is_inside(root, file, (_OPENED / str(opened)).readlink()):
            raise _leaves(root, file)
    except BaseException:
        os.close(opened)
        raise
    return opened


def read_inside(root: Path, file: Path) -> bytes:
    """Return the contents of a small file in the folder."""
    with adding_filename(root / file), open(open_inside(root, file), "rb") as opened:
        return opened.read()


def _is_inside(root: Path, file: Path, real: Path) -> bool:
    if real.is_relative_to(root.resolve()):
        return True
    return hub_blob(root, file) is not None and real == (root / file).resolve()


def _leaves(root: Path, file: Path) -> CheckpointError:
    fix = "copy the file into the folder, or pass the folder that contains it"
    return CheckpointError(f"'{file}' is a link to a path outside the folder", where=str(root), fix=fix)


def hub_blob(root: Path, file: Path) -> str | None:
    """Return the etag of a file in a snapshot of the Hub's cache; None for any other layout.

    CACHE/models--ORG--NAME/snapshots/REVISION/FILE is a link to CACHE/models--ORG--NAME/blobs/ETAG, which is a file or
    a link to CACHE/blobs/XX/XET_HASH, the store shared by repositories.
    """
    snapshot = root.resolve()
    repository = snapshot.parent.parent
    link = snapshot / file
    if snapshot.parent.name != "snapshots" or not HUB_REPOSITORY.fullmatch(repository.name):
        return None
    if not link.parent.resolve().is_relative_to(snapshot) or not link.is_symlink():
        return None
    blob = _target(link)
    if blob.parent != repository / "blobs" or not _ETAG.fullmatch(blob.name) or blob.parent.is_symlink():
        return None
    if blob.is_symlink() and not _is_shared(_target(blob), repository.parent / "blobs"):
        return None
    return blob.name


def _target(link: Path) -> Path:
    """Return the target of a link without following further links."""
    return Path(os.path.normpath(link.parent.resolve() / link.readlink()))


def _is_shared(target: Path, store: Path) -> bool:
    marked = (store / _SHARED_MARKER).is_file() and not store.is_symlink()
    named = _XET_HASH.fullmatch(target.name) is not None and target.parent == store / target.name[:2]
    return marked and named and not target.parent.is_symlink() and _is_plain_file(target)


def _is_plain_file(path: Path) -> bool:
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except OSError:
        return False
