"""Parse the address of a remote checkpoint and locate its cache, without network access.

Imports little, because every command that accepts addresses uses it.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

from halfbyte.errors import CheckpointError, UsageError

HUB = "hf"
_HUB_HOSTS = ("huggingface.co", "hf.co", "www.huggingface.co")
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://(.*)", re.DOTALL)
_HUB_FORM = "use hf://organization/name, hf://organization/name@revision or hf://organization/name@revision/folder"
# A revision has no slash, except in the Hub's own refs; other slashes are written %2F, as in huggingface_hub.
_REVISION = re.compile(r"(refs/(?:pr/\d+|convert/[\w.-]+)|[^/]+)(?:/(.*))?", re.DOTALL)
_NAME_PART = re.compile(r"\w[\w.-]*", re.ASCII)

DEFAULT_CACHE = "60GB"
CACHE_VARIABLE = "HALFBYTE_CACHE"


@dataclass(frozen=True, slots=True)
class HubAddress:
    """A Hub repository, a revision (None: the default branch), and a folder in it."""

    repo: str
    revision: str | None = None
    folder: str = ""

    def __str__(self) -> str:
        revision = f"@{self.revision}" if self.revision else ""
        return f"{HUB}://{self.repo}{revision}{'/' if self.folder else ''}{self.folder}"


@dataclass(frozen=True, slots=True)
class UrlAddress:
    """A folder of an object store: the fsspec scheme and the path."""

    scheme: str
    path: str

    def __str__(self) -> str:
        return f"{self.scheme}://{self.path}"


Address = HubAddress | UrlAddress


def is_remote(text: str) -> bool:
    """Whether the text is an address rather than a local path."""
    return _URL.fullmatch(text) is not None


def hub_address(text: str) -> str | None:
    """Return the hf:// address for text of the form organization/name, else None."""
    parts = text.split("/")
    return f"{HUB}://{text}" if len(parts) == 2 and all(_NAME_PART.fullmatch(part) for part in parts) else None  # noqa: PLR2004


def refuse_hub_id(source: str) -> None:
    """Raise for organization/name without such a local folder: a Hub repository needs the hf:// scheme."""
    name = source.rstrip("/")  # as shells complete folders
    address = hub_address(name)
    if address is not None and not Path(source).exists():
        fix = f"for the repository on the Hub, use {address}"
        raise CheckpointError("the folder does not exist", where=name, fix=fix)


def parse_address(text: str) -> Address:
    """Parse an address; raise if it is invalid."""
    match = _URL.fullmatch(text)
    if match is None:
        raise UsageError(f"'{text}' is not a valid address", where="SRC", fix=_HUB_FORM)
    scheme, rest = match[1].lower(), match[2]
    if scheme in ("http", "https"):
        host, _, path = rest.partition("/")
        page = hub_address("/".join(path.split("/")[:2])) if host in _HUB_HOSTS else None
        fix = (
            f"use {page}"
            if page
            else "use hf://organization/name for a Hub repository, or the s3:// or gs:// address of a folder"
        )
        raise UsageError("a web page is not a checkpoint", where=f"{scheme}://", fix=fix)
    if scheme == HUB:
        return _hub(text, rest)
    if ":" in rest.partition("/")[0].rpartition("@")[0]:
        fix = "remove it: credentials come from the environment or the store's own configuration"
        raise UsageError("the address contains a password", where=f"{scheme}://", fix=fix)
    path = rest.strip("/") if scheme != "file" else rest.rstrip("/")
    if not path or ".." in path.split("/"):
        raise UsageError(f"'{text}' has no folder", where="SRC", fix=f"use {scheme}://bucket/folder")
    return UrlAddress(scheme, path)


def _hub(text: str, rest: str) -> HubAddress:
    error = UsageError(f"'{text}' is not a valid repository name", where="SRC", fix=_HUB_FORM)
    name, at, after = rest.partition("@")
    revision: str | None = None
    folder = ""
    if at:
        match = _REVISION.fullmatch(after)
        if match is None:
            raise error
        revision, folder = unquote(match[1]), match[2] or ""
    else:
        owner, _, inner = name.partition("/")
        repository, _, folder = inner.partition("/")
        name = f"{owner}/{repository}"
    parts = name.split("/")
    if len(parts) != 2 or not all(_NAME_PART.fullmatch(part) for part in parts):  # noqa: PLR2004 - owner and name
        raise error
    folder = folder.strip("/")
    if any(part in ("", ".", "..") for part in folder.split("/")) and folder:
        raise error
    return HubAddress(name, revision, folder)


@dataclass(frozen=True, slots=True)
class Cache:
    """The cache folder and the most bytes of shards it may hold."""

    folder: Path
    limit_nbytes: int


def default_folder() -> Path:
    """Return the default cache folder."""
    named = os.environ.get(CACHE_VARIABLE)
    if named:
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "halfbyte"
