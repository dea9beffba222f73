"""What is known of a file before it is here, and what every kind of store can do."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

Kind = Literal["sha256", "md5", "git"]  # git: the SHA-1 of a blob, which has its length before it


@dataclass(frozen=True, slots=True)
class Checksum:
    """What the bytes of a file hash to, and who says so."""

    kind: Kind
    value: str
    source: str

    @property
    def name(self) -> str:
        """Return what people call it."""
        return {"sha256": "SHA-256", "md5": "MD5", "git": "Git hash"}[self.kind]

    def begin(self, nbytes: int) -> Any:
        """Return a digest that the bytes of a file of this size can be given to."""
        if self.kind == "git":
            return hashlib.sha1(b"blob %d\0" % nbytes, usedforsecurity=False)
        return hashlib.md5(usedforsecurity=False) if self.kind == "md5" else hashlib.sha256()


@dataclass(frozen=True, slots=True)
class Entry:
    """One file of a store: its size, what tells this version of it from others, and its checksum if one is known."""

    nbytes: int
    version: str
    checksum: Checksum | None


class Files(Protocol):
    """The files of one checkpoint in a store, as they were when they were listed."""

    @property
    def where(self) -> str:
        """Return the address, as a user would write it."""
        ...

    @property
    def label(self) -> str:
        """Return a name that a folder can have."""
        ...

    @property
    def pin(self) -> str:
        """Return what names this version of the whole: a commit, or a hash of the listing."""
        ...

    @property
    def entries(self) -> Mapping[str, Entry]:
        """Return every file by its name below the folder."""
        ...

    def stream(self, name: str, begin: int, end: int) -> Iterator[bytes]:
        """Yield the bytes of a range; PassingError where trying again may help, a HalfbyteError where not."""
        ...

    def refuse_changed(self, name: str) -> None:
        """Raise if a file is no longer what was listed."""
        ...
