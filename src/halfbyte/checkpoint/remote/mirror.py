"""The local mirror folder of a remote checkpoint: small files in full, headers by range requests, shards in the cache.

The folder is named after the address and its version, so that versions never mix.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
from collections.abc import Generator, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, cast

from halfbyte.checkpoint.atomic_write import write_whole
from halfbyte.checkpoint.folder import (
    CONFIG,
    INDEX,
    READERS,
    SINGLE,
    Checkpoint,
    Promised,
    assemble,
    check_shard_name,
    is_weights,
    parse_json,
    promised_shards,
)
from halfbyte.checkpoint.headers import LENGTH_NBYTES, header_length
from halfbyte.checkpoint.identity import known_hashes
from halfbyte.checkpoint.remote.address import Cache, HubAddress, parse_address
from halfbyte.checkpoint.remote.download import read_whole
from halfbyte.checkpoint.remote.hub import open_hub
from halfbyte.checkpoint.remote.object_store import open_objects
from halfbyte.checkpoint.remote.shard_cache import ShardCache
from halfbyte.checkpoint.remote.store import Checksum, Files
from halfbyte.checkpoint.untrusted_files import read_json
from halfbyte.errors import CheckpointError
from halfbyte.machine.interrupts import gc_paused

FIRST_NBYTES = 1024**2  # covers a Kimi-K2 shard header: usually one request per shard, at most two
_IDENTITY = ".identity.json"
_MAX_SMALL_NBYTES = 2 * 10**9
_NAME_NBYTES = 200  # per folder name; file systems allow 255, object store paths may have a thousand
_OWNER = "report it to the owner, or pass another address"


def open_remote(address: str, cache: Cache, pin: str | None = None, *, verify: bool = True) -> Checkpoint:
    """Read config, index and headers of a remote checkpoint; shards are fetched when they are read.

    `pin` is the commit used by an earlier run. With `verify` false, checksums are ignored.
    """
    parsed = parse_address(address)
    files: Files = open_hub(parsed, pin) if isinstance(parsed, HubAddress) else open_objects(parsed)
    root = cache.folder / _folder_name(files.label) / files.pin
    with gc_paused():
        _fetch_small(files, root)
        config = _json(files, root, CONFIG)
        index = _json(files, root, INDEX) if INDEX in files.entries else None
        promised = promised_shards(index) if index is not None else _single(files)
        for shard in promised:
            check_shard_name(shard)
            if shard not in files.entries:
                raise CheckpointError(f"shard '{shard}' is missing", where=files.where, fix=_OWNER)
        with ThreadPoolExecutor(READERS) as pool:
            raw = dict(zip(promised, pool.map(partial(_header, files), promised), strict=True))
        checkpoint = assemble(root, config, index, promised, raw)
    checksums = _checksums(files, root, list(promised)) if verify else {}
    return replace(checkpoint, remote=ShardCache(files, root, checksums, cache.limit_nbytes))


def _folder_name(label: str) -> str:
    """Return a label as a folder name; long labels are truncated and get a hash suffix."""
    raw = label.encode()
    if len(raw) <= _NAME_NBYTES:
        return label
    return f"{raw[:_NAME_NBYTES].decode(errors='ignore')}-{hashlib.sha256(raw).hexdigest()[:16]}"


def remote_identity(checkpoint: Checkpoint, cache: ShardCache, count: int, nbytes: int) -> Mapping[str, list[bytes]]:
    """Return samples of each shard, read by range requests and cached for the next run."""
    path = checkpoint.root / _IDENTITY
    with contextlib.suppress(OSError, ValueError, AttributeError):
        saved = cast("dict[str, list[str]]", read_json(path))
        if saved.keys() == checkpoint.shards.keys():
            return {shard: [bytes.fromhex(piece) for piece in pieces] for shard, pieces in saved.items()}

    def read(sample: tuple[str, int]) -> bytes:
        shard, number = sample
        at = max(checkpoint.shards[shard] - nbytes, 0) * number // count
        return read_whole(cache.files, shard, at, min(at + nbytes, checkpoint.shards[shard]))

    samples = [(shard, number) for shard in checkpoint.shards for number in range(1, count + 1)]
    with ThreadPoolExecutor(READERS) as pool:
        pieces = list(pool.map(read, samples))
    by_shard = {s: pieces[i * count : (i + 1) * count] for i, s in enumerate(checkpoint.shards)}
    text = json.dumps({shard: [piece.hex() for piece in row] for shard, row in by_shard.items()})
    write_whole(path, text.encode())
    return by_shard


def _small(files: Files) -> Iterator[str]:
    """Yield the non-weight files and the index; raise on a name that leads outside the folder."""
    for name in sorted(files.entries):
        pure = PurePosixPath(name)
        if pure.is_absolute() or ".." in pure.parts or "\\" in name or "\0" in name:
            raise CheckpointError(f"invalid file name {name!r}", where=files.where, fix=_OWNER)
        hidden = any(part.startswith(".") for part in pure.parts)
        if not hidden and (not is_weights(pure) or name == INDEX):
            yield name


def _fetch_small(files: Files, root: Path) -> None:
    missing = [name for name in _small(files) if not _is_current(files, root, name)]
    nbytes = sum(files.entries[name].nbytes for name in missing)
    if nbytes > _MAX_SMALL_NBYTES:
        largest = max(missing, key=lambda name: files.entries[name].nbytes)
        what = f"the non-weight files have {nbytes / 1e9:,.1f} GB in total (largest: '{largest}')"
        raise CheckpointError(what, where=files.where, fix="pass an address that contains only a checkpoint")
    if not missing:
        return
    with _locked(root), ThreadPoolExecutor(READERS) as pool:
        list(pool.map(partial(_fetch_one, files, root), missing))


def _is_current(files: Files, root: Path, name: str) -> bool:
    """Whether an identical local copy exists; files without a checksum are always fetched."""
    try:
        data = (root / name).read_bytes()
    except OSError:
        return False
    return files.entries[name].checksum is not None and _matches(files, name, data)


def _matches(files: Files, name: str, data: bytes) -> bool:
    entry = files.entries[name]
    if len(data) != entry.nbytes or entry.checksum is None:
        return len(data) == entry.nbytes
    digest = entry.checksum.new_digest(entry.nbytes)
    digest.update(data)
    return digest.hexdigest() == entry.checksum.value


def _fetch_one(files: Files, root: Path, name: str) -> None:
    for _ in range(2):  # one retry after a damaged transfer
        data = read_whole(files, name, 0, files.entries[name].nbytes)
        if _matches(files, name, data):
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            write_whole(root / name, data)
            return
    what = f"'{name}' arrives damaged: its hash does not match the listing"
    raise CheckpointError(what, where=files.where, fix="a proxy may be modifying it; try another network")


@contextlib.contextmanager
def _locked(root: Path) -> Generator[None]:
    """Hold the lock for writing small files to this folder."""
    root.mkdir(parents=True, exist_ok=True)
    folder = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


def _json(files: Files, root: Path, name: str) -> dict[str, Any]:
    if name not in files.entries:
        raise CheckpointError(f"{name} is missing", where=files.where, fix="pass the address of a checkpoint")
    return parse_json((root / name).read_bytes(), name, f"{files.where}/{name}", _OWNER)


def _header(files: Files, shard: str) -> tuple[bytes, int]:
    """Return the raw JSON header of a shard, and the shard size."""
    nbytes = files.entries[shard].nbytes
    first = read_whole(files, shard, 0, min(FIRST_NBYTES, nbytes))
    end = LENGTH_NBYTES + header_length(first[:LENGTH_NBYTES], nbytes, shard)
    if end > len(first):
        first += read_whole(files, shard, len(first), end)
    return first[LENGTH_NBYTES:end], nbytes


def _single(files: Files) -> Promised:
    if SINGLE in files.entries:
        return {SINGLE: None}
    raise CheckpointError("no safetensors at this address", where=files.where, fix="pass the address of a checkpoint")


def _checksums(files: Files, root: Path, shards: list[str]) -> dict[str, Checksum]:
    """Return the expected checksums: a SHA-256 from the Hub, SHA256SUMS, or an ETag that is an MD5."""
    sums = known_hashes(root, shards)
    checksums: dict[str, Checksum] = {}
    for shard in shards:
        listed = files.entries[shard].checksum
        if listed is not None and listed.kind == "sha256":
            checksums[shard] = listed
        elif shard in sums:
            checksums[shard] = Checksum("sha256", sums[shard].sha256, sums[shard].source)
        elif listed is not None:
            checksums[shard] = listed
    return checksums
