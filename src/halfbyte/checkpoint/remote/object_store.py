"""Object stores through fsspec: S3, Google Cloud Storage, Azure, and any other fsspec scheme."""

from __future__ import annotations

import base64
import hashlib
import importlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from halfbyte.checkpoint.remote.address import UrlAddress
from halfbyte.checkpoint.remote.download import TransientError
from halfbyte.checkpoint.remote.store import Checksum, Entry
from halfbyte.errors import CheckpointError, HalfbyteError, MachineError, UsageError
from halfbyte.machine.extras import install_extra

PIECE_NBYTES = 1 << 24  # per request; repeated after a lost connection
_S3 = ("s3", "s3a")
_LIBRARIES = {"gs": "gcsfs", "gcs": "gcsfs", "abfs": "adlfs", "az": "adlfs"}
_MD5 = re.compile("[0-9a-f]{32}")
_KEYS = "set its credentials in the environment (docs/remote.md), or check that you may read the bucket"


@dataclass(frozen=True, slots=True)
class ObjectFiles:
    """The objects in a folder, as of the time of listing."""

    address: UrlAddress
    entries: Mapping[str, Entry]
    _fs: Any = field(repr=False)
    _root: str = ""

    @property
    def where(self) -> str:
        """Return the address as the user gave it."""
        return str(self.address)

    @property
    def label(self) -> str:
        """Return a name built from scheme and path."""
        return "--".join([self.address.scheme, *self.address.path.strip("/").split("/")])

    @property
    def pin(self) -> str:
        """Return a hash of the size and version of all weights and JSON files."""
        parts = [
            (name, entry.nbytes, entry.version)
            for name, entry in sorted(self.entries.items())
            if name.endswith((".safetensors", ".json"))
        ]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:40]

    def stream(self, name: str, begin: int, end: int) -> Iterator[bytes]:
        """Yield the bytes of a range, one request per piece."""
        while begin < end:
            stop = min(begin + PIECE_NBYTES, end)
            try:
                piece: bytes = self._fs.cat_file(f"{self._root}/{name}", start=begin, end=stop)
            except Exception as error:
                raise _translated(error, self.where) from None
            if not piece:
                raise TransientError("the store returned no data")
            if len(piece) > stop - begin:
                raise TransientError("the store returned more data than requested")
            yield piece
            begin += len(piece)

    def refuse_changed(self, name: str) -> None:
        """Raise if the size or ETag of an object has changed."""
        try:
            self._fs.invalidate_cache()
            now = _entry(self._fs.info(f"{self._root}/{name}"))
        except Exception as error:
            raise _translated(error, self.where) from None
        listed = self.entries[name]
        if (now.nbytes, now.version) != (listed.nbytes, listed.version):
            what, fix = f"'{name}' changed while it was read", "do not modify the source, and start again"
            raise CheckpointError(what, where=self.where, fix=fix)


def open_objects(address: UrlAddress) -> ObjectFiles:
    """List a folder of an object store."""
    fs = _file_system(address)
    root = str(fs._strip_protocol(str(address))).rstrip("/")
    try:
        listing: Mapping[str, Any] = fs.find(root, detail=True)
    except Exception as error:
        translated = _translated(error, str(address))
        if isinstance(translated, TransientError):
            what = f"the store cannot be reached: {translated.what}"
            raise MachineError(what, where=str(address), fix="check the network and the store's address") from None
        raise translated from None
    entries = {
        name.removeprefix(f"{root}/"): _entry(info)
        for name, info in listing.items()
        if name.startswith(f"{root}/") and info.get("size") is not None and info.get("type") != "directory"
    }
    if not entries:
        raise CheckpointError("no files at this address", where=str(address), fix="check bucket and folder")
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
        what = f"no library for {address.scheme}:// is installed"
        raise MachineError(what, where=str(address), fix=fix) from None
    except ValueError:
        what = f"unknown address scheme {address.scheme}://"
        raise UsageError(what, where=str(address), fix="use hf://, s3:// or gs://, or pass a folder") from None


def _entry(info: Mapping[str, Any]) -> Entry:
    """Convert a listing entry. An ETag is an MD5 unless it has a dash, which marks a multipart upload."""
    etag = str(info.get("ETag") or info.get("etag") or "").strip('"')
    md5, source = (etag, "its ETag") if _MD5.fullmatch(etag) and "ETag" in info else ("", "")
    if isinstance(stored := info.get("md5Hash"), str):  # Google's, in base64
        md5, source = base64.b64decode(stored).hex(), "the store"
    version = etag or md5 or str(info.get("mtime") or "")
    return Entry(int(info["size"]), version, Checksum("md5", md5, source) if md5 else None)


def _translated(error: Exception, where: str) -> HalfbyteError | TransientError:
    """Convert a store's exception; its libraries have already retried."""
    kind = type(error).__name__
    if isinstance(error, (HalfbyteError, TransientError)):
        return error
    if isinstance(error, FileNotFoundError):
        return CheckpointError("a file does not exist or was deleted", where=where, fix="check bucket and folder")
    if isinstance(error, PermissionError) or "Credentials" in kind:
        return MachineError("the store denies access without credentials", where=where, fix=_KEYS)
    return TransientError(f"the store did not respond ({kind})")
