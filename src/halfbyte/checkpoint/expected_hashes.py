"""Expected SHA-256 hashes of source shards, from download metadata.

There are three sources. `hf download --local-dir` writes .cache/huggingface/download/FILE.metadata with commit, etag
and time. In the Hub's cache, a file is a link to blobs/ETAG. For large files the etag is the SHA-256. A folder may also
contain a SHA256SUMS file as written by `sha256sum`.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from halfbyte.checkpoint.untrusted_files import plain_bytes, plain_text
from halfbyte.ui.escape import pasted

SUMS = "SHA256SUMS"
_SHA256 = re.compile("[0-9a-f]{64}")
_COMMIT = re.compile("[0-9a-f]{40}")
_ETAG = re.compile("[0-9a-f]{40}|[0-9a-f]{64}")  # Git's SHA-1 of a small file, or the SHA-256 of a large one
_REPOSITORY = re.compile("models--.+")
_SHARED_MARKER = ".huggingface-shared-blobs"


@dataclass(frozen=True, slots=True)
class KnownHash:
    """The expected SHA-256 of a shard, its source, and the command to run on a mismatch."""

    sha256: str
    source: str
    remedy: str


def hub_blob(root: Path, file: Path) -> str | None:
    """Return the etag of a file in a snapshot of the Hub's cache; None for any other layout.

    CACHE/models--ORG--NAME/snapshots/REVISION/FILE is a link to CACHE/models--ORG--NAME/blobs/ETAG, which is a file or
    a link to CACHE/blobs/XX/XET_HASH, the store shared by repositories.
    """
    snapshot = root.resolve()
    repository = snapshot.parent.parent
    link = snapshot / file
    if snapshot.parent.name != "snapshots" or not _REPOSITORY.fullmatch(repository.name):
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
    named = _SHA256.fullmatch(target.name) is not None and target.parent == store / target.name[:2]
    return marked and named and not target.parent.is_symlink() and _is_plain_file(target)


def _is_plain_file(path: Path) -> bool:
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except OSError:
        return False


def known_hashes(root: Path, shards: Iterable[str]) -> dict[str, KnownHash]:
    """Return the known hashes of these shards; hashes from the Hub take precedence over SHA256SUMS."""
    sums = _read_sums(root)
    hashes: dict[str, KnownHash] = {}
    for shard in shards:
        known = _from_cache(root, shard) or _from_download(root, shard)
        if known is None and shard in sums:
            known = KnownHash(sums[shard], SUMS, f"copy this shard again from the source of {SUMS}")
        if known is not None:
            hashes[shard] = known
    return hashes


def revision_of(root: Path, shards: Iterable[str]) -> tuple[str, str | None]:
    """Return a source's name, and the commit it was downloaded at if the metadata records it."""
    snapshot = root.resolve()
    if snapshot.parent.name == "snapshots" and _REPOSITORY.fullmatch(snapshot.parent.parent.name):
        return _repository_name(snapshot), snapshot.name
    noted = {entry[0] if (entry := _read_metadata(root, shard)) is not None else None for shard in shards}
    commit = noted.pop() if len(noted) == 1 else None
    return snapshot.name, commit if commit is not None and _COMMIT.fullmatch(commit) else None


def _repository_name(snapshot: Path) -> str:
    return snapshot.parent.parent.name.removeprefix("models--").replace("--", "/", 1)


def _from_cache(root: Path, shard: str) -> KnownHash | None:
    etag = hub_blob(root, Path(shard))
    if etag is None or not _SHA256.fullmatch(etag):
        return None
    snapshot = root.resolve()
    return KnownHash(etag, "the Hub", _download(_repository_name(snapshot), shard, snapshot.name))


def _from_download(root: Path, shard: str) -> KnownHash | None:
    entry = _read_metadata(root, shard)
    if entry is None or not _SHA256.fullmatch(entry[1]):
        return None
    command = _download("ORGANIZATION/NAME", shard, entry[0])
    return KnownHash(entry[1], "the Hub", f"{command} --local-dir {pasted(root)}")


def _read_metadata(root: Path, shard: str) -> tuple[str, str] | None:
    """Return the commit and etag in a file's download metadata."""
    path = root / ".cache" / "huggingface" / "download" / f"{shard}.metadata"
    try:
        commit, etag, *_ = plain_text(path).splitlines()
    except (OSError, ValueError):
        return None
    return commit.strip(), etag.strip()


def _download(name: str, shard: str, revision: str) -> str:
    return f"hf download {pasted(name)} {pasted(shard)} --revision {pasted(revision)} --force-download"


def _read_sums(root: Path) -> dict[str, str]:
    try:
        text = plain_bytes(root / SUMS).decode(errors="replace")
    except OSError:
        return {}
    lines = (re.fullmatch(r"([0-9a-fA-F]{64}) [ *](?:\./)?(.+)", line) for line in text.splitlines())
    return {match[2]: match[1].lower() for match in lines if match}
