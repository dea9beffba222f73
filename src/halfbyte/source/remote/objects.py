"""Object stores through fsspec: S3, Google's, Azure's, and whatever else fsspec knows by a name."""

from __future__ import annotations

import base64
import hashlib
import importlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from halfbyte.errors import CheckpointError, HalfbyteError, MachineError, UsageError
from halfbyte.machine.extras import install_extra
from halfbyte.source.remote.address import UrlAddress
from halfbyte.source.remote.files import Checksum, Entry
from halfbyte.source.remote.patience import PassingError

PIECE_NBYTES = 1 << 24  # of one request: as much is asked for again after a cut
_S3 = ("s3", "s3a")
_LIBRARIES = {"gs": "gcsfs", "gcs": "gcsfs", "abfs": "adlfs", "az": "adlfs"}
_MD5 = re.compile("[0-9a-f]{32}")
_KEYS = "set its keys in the environment (docs/remote.md), or check that the bucket is yours to read"


@dataclass(frozen=True, slots=True)
class ObjectFiles:
    """The objects below a folder, as they were when they were listed."""

    address: UrlAddress
    entries: Mapping[str, Entry]
    _fs: Any = field(repr=False)
    _root: str = ""

    @property
    def where(self) -> str:
        """Return the address as it was written."""
        return str(self.address)

    @property
    def label(self) -> str:
        """Return scheme and path, as one name."""
        return "--".join([self.address.scheme, *self.address.path.strip("/").split("/")])

    @property
    def pin(self) -> str:
        """Return a hash of everything that decides bytes: weights and JSON files, by size and version."""
        parts = [
            (name, entry.nbytes, entry.version)
            for name, entry in sorted(self.entries.items())
            if name.endswith((".safetensors", ".json"))
        ]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:40]

    def stream(self, name: str, begin: int, end: int) -> Iterator[bytes]:
        """Yield the bytes of a range, a request for each piece."""
        while begin < end:
            stop = min(begin + PIECE_NBYTES, end)
            try:
                piece: bytes = self._fs.cat_file(f"{self._root}/{name}", start=begin, end=stop)
            except Exception as error:
                raise _said(error, self.where) from None
            if not piece:
                raise PassingError("the store answered with nothing")
            if len(piece) > stop - begin:
                raise PassingError("the store answered with more than it was asked for")
            yield piece
            begin += len(piece)

    def refuse_changed(self, name: str) -> None:
        """Raise if an object was written again: its size or its ETag is another."""
        try:
            self._fs.invalidate_cache()
            now = _entry(self._fs.info(f"{self._root}/{name}"))
        except Exception as error:
            raise _said(error, self.where) from None
        then = self.entries[name]
        if (now.nbytes, now.version) != (then.nbytes, then.version):
            what, fix = f"'{name}' was written again while it was read", "leave the source alone, and begin anew"
            raise CheckpointError(what, where=self.where, fix=fix)


def open_objects(address: UrlAddress) -> ObjectFiles:
    """List a folder of an object store."""
    fs = _file_system(address)
    root = str(fs._strip_protocol(str(address))).rstrip("/")
    try:
        found: Mapping[str, Any] = fs.find(root, detail=True)
    except Exception as error:
        said = _said(error, str(address))
        if isinstance(said, PassingError):
            what = f"the store cannot be reached: {said.what}"
            raise MachineError(what, where=str(address), fix="check the network and the store's address") from None
        raise said from None
    entries = {
        name.removeprefix(f"{root}/"): _entry(info)
        for name, info in found.items()
        if name.startswith(f"{root}/") and info.get("size") is not None and info.get("type") != "directory"
    }
    if not entries:
        raise CheckpointError("there is nothing at this address", where=str(address), fix="check bucket and folder")
    return ObjectFiles(address, entries, fs, root)


def _file_system(address: UrlAddress) -> Any:
    fsspec: Any = importlib.import_module("fsspec")
    try:
        return fsspec.filesystem(address.scheme)
    except ImportError:
        library = _LIBRARIES.get(address.scheme)
        fix = f"pip install {library}" if library else "install its fsspec package"
        if address.scheme in _S3:
            fix = install_extra("s3")
        what = f"this machine has no library for {address.scheme}://"
        raise MachineError(what, where=str(address), fix=fix) from None
    except ValueError:
        what = f"nobody knows what {address.scheme}:// is"
        raise UsageError(what, where=str(address), fix="write hf://, s3:// or gs://, or give a folder") from None


def _entry(info: Mapping[str, Any]) -> Entry:
    """Return what a listing says. An ETag is an MD5 unless the object came in parts: then it has a dash."""
    etag = str(info.get("ETag") or info.get("etag") or "").strip('"')
    md5, source = (etag, "its ETag") if _MD5.fullmatch(etag) and "ETag" in info else ("", "")
    if isinstance(stored := info.get("md5Hash"), str):  # Google's, in base64
        md5, source = base64.b64decode(stored).hex(), "the store"
    version = etag or md5 or str(info.get("mtime") or "")
    return Entry(int(info["size"]), version, Checksum("md5", md5, source) if md5 else None)


def _said(error: Exception, where: str) -> HalfbyteError | PassingError:
    """Return what an error of a store means: its libraries have tried again themselves before it came."""
    kind = type(error).__name__
    if isinstance(error, (HalfbyteError, PassingError)):
        return error
    if isinstance(error, FileNotFoundError):
        return CheckpointError("a file is not there, or not any more", where=where, fix="check bucket and folder")
    if isinstance(error, PermissionError) or "Credentials" in kind:
        return MachineError("the store lets nobody read here without a key", where=where, fix=_KEYS)
    return PassingError(f"the store did not answer ({kind})")
