"""File entries, checksums, and the interface of every remote store."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

Kind = Literal["sha256", "md5", "git"]  # git: the SHA-1 of a blob, which is prefixed with its length


@dataclass(frozen=True, slots=True)
class Checksum:
    """The expected hash of a file, and where it comes from."""

    kind: Kind
    value: str
    source: str

    @property
    def name(self) -> str:
        """Return the display name of the algorithm."""
        return {"sha256": "SHA-256", "md5": "MD5", "git": "Git hash"}[self.kind]

    def new_digest(self, nbytes: int) -> Any:
        """Return a new hash object for a file of this size."""
        if self.kind == "git":
            return hashlib.sha1(b"blob %d\0" % nbytes, usedforsecurity=False)
        return hashlib.md5(usedforsecurity=False) if self.kind == "md5" else hashlib.sha256()


@dataclass(frozen=True, slots=True)
class Entry:
    """One file in a store: its size, its version, and its checksum if known."""

    nbytes: int
    version: str
    checksum: Checksum | None


class Files(Protocol):
    """The files of one checkpoint in a store, as of the time of listing."""

    @property
    def where(self) -> str:
        """Return the address in the form a user would type."""
        ...

    @property
    def label(self) -> str:
        """Return a name suitable for a folder."""
        ...

    @property
    def pin(self) -> str:
        """Return the version of the checkpoint: a commit, or a hash of the listing."""
        ...

    @property
    def entries(self) -> Mapping[str, Entry]:
        """Return every file by its path in the folder."""
        ...

    def stream(self, name: str, begin: int, end: int) -> Iterator[bytes]:
        """Yield the bytes of a range; TransientError if a retry may help, otherwise a HalfbyteError."""
        ...

    def refuse_changed(self, name: str) -> None:
        """Raise if a file has changed since the listing."""
        ...
