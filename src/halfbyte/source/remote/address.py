"""What a user may write for a checkpoint that is elsewhere, taken apart without asking anyone."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import unquote

from halfbyte.errors import UsageError

HUB = "hf"
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://(.*)", re.DOTALL)
_HUB_FORM = "write hf://organisation/name, hf://organisation/name@revision or hf://organisation/name@revision/folder"
# A revision has no slash, but for the Hub's own refs; another slash is written %2F, as huggingface_hub wants it too.
_REVISION = re.compile(r"(refs/(?:pr/\d+|convert/[\w.-]+)|[^/]+)(?:/(.*))?", re.DOTALL)
_PART = re.compile(r"\w[\w.-]*", re.ASCII)


@dataclass(frozen=True, slots=True)
class HubAddress:
    """A repository of the Hub, a revision (None: its default branch), and a folder in it."""

    repo: str
    revision: str | None = None
    folder: str = ""

    def __str__(self) -> str:
        revision = f"@{self.revision}" if self.revision else ""
        return f"{HUB}://{self.repo}{revision}{'/' if self.folder else ''}{self.folder}"


@dataclass(frozen=True, slots=True)
class UrlAddress:
    """A folder of an object store, by fsspec's name for the store and the path in it."""

    scheme: str
    path: str

    def __str__(self) -> str:
        return f"{self.scheme}://{self.path}"


Address = HubAddress | UrlAddress


def is_remote(text: str) -> bool:
    """Whether somebody wrote an address and no folder."""
    return _URL.fullmatch(text) is not None


def parse_address(text: str) -> Address:
    """Take an address apart; refuse what cannot be one."""
    match = _URL.fullmatch(text)
    if match is None:
        raise UsageError(f"'{text}' is no address", where="SRC", fix=_HUB_FORM)
    scheme, rest = match[1].lower(), match[2]
    if scheme in ("http", "https"):
        fix = "write hf://organisation/name for what is on the Hub, or the s3:// or gs:// address of a folder"
        raise UsageError("a web page is no checkpoint", where=f"{scheme}://", fix=fix)
    if scheme == HUB:
        return _hub(text, rest)
    if ":" in rest.partition("/")[0].rpartition("@")[0]:
        fix = "leave it out: keys come from the environment or from the store's own configuration"
        raise UsageError("the address holds a password", where=f"{scheme}://", fix=fix)
    path = rest.strip("/") if scheme != "file" else rest.rstrip("/")
    if not path or ".." in path.split("/"):
        raise UsageError(f"'{text}' names no folder", where="SRC", fix=f"write {scheme}://bucket/folder")
    return UrlAddress(scheme, path)


def _hub(text: str, rest: str) -> HubAddress:
    refused = UsageError(f"'{text}' is no name of a repository", where="SRC", fix=_HUB_FORM)
    name, at, after = rest.partition("@")
    revision: str | None = None
    folder = ""
    if at:
        match = _REVISION.fullmatch(after)
        if match is None:
            raise refused
        revision, folder = unquote(match[1]), match[2] or ""
    else:
        owner, _, inner = name.partition("/")
        repository, _, folder = inner.partition("/")
        name = f"{owner}/{repository}"
    parts = name.split("/")
    if len(parts) != 2 or not all(_PART.fullmatch(part) for part in parts):  # noqa: PLR2004 - owner and name
        raise refused
    folder = folder.strip("/")
    if any(part in ("", ".", "..") for part in folder.split("/")) and folder:
        raise refused
    return HubAddress(name, revision, folder)
