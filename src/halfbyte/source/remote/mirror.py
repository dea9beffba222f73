"""The folder that stands for a checkpoint that is elsewhere: small files whole, headers by range requests, shards on
the shelf. Whoever reads a tokenizer or a licence finds it there, as in a folder that was downloaded.

It is named after the address and the version of what lies there, so that two versions never meet in one folder.
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

from halfbyte.errors import CheckpointError
from halfbyte.machine.collector import paused
from halfbyte.source.checkpoint import (
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
from halfbyte.source.foreign import read_json
from halfbyte.source.headers import LENGTH_NBYTES, header_length
from halfbyte.source.known_hashes import known_hashes
from halfbyte.source.remote.address import HubAddress, parse_address
from halfbyte.source.remote.cache import Cache
from halfbyte.source.remote.files import Checksum, Files
from halfbyte.source.remote.hub import open_hub
from halfbyte.source.remote.objects import open_objects
from halfbyte.source.remote.patience import read_whole
from halfbyte.source.remote.shelf import Shelf
from halfbyte.write import write_whole

FIRST_NBYTES = 1024**2  # holds the whole header of a layer of Kimi-K2: mostly one request a shard, at most two
_IDENTITY = ".identity.json"
_MAX_SMALL_NBYTES = 2 * 10**9
_NAME_NBYTES = 200  # of a folder; file systems allow 255, and an object store's path may have a thousand
_OWNER = "tell its owner, or give another address"


def open_remote(address: str, cache: Cache, pin: str | None = None, *, verify: bool = True) -> Checkpoint:
    """Read config, index and headers of a checkpoint by its address; shards are fetched when they are read.

    `pin` is the commit that an earlier run has read; without `verify` no checksum is looked at.
    """
    found = parse_address(address)
    files: Files = open_hub(found, pin) if isinstance(found, HubAddress) else open_objects(found)
    root = cache.folder / _folder_name(files.label) / files.pin
    with paused():
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
    return replace(checkpoint, remote=Shelf(files, root, checksums, cache.limit_nbytes))


def _folder_name(label: str) -> str:
    """Return a label as a file system takes it; of a long one the beginning, and a hash of all of it."""
    raw = label.encode()
    if len(raw) <= _NAME_NBYTES:
        return label
    return f"{raw[:_NAME_NBYTES].decode(errors='ignore')}-{hashlib.sha256(raw).hexdigest()[:16]}"


def remote_identity(checkpoint: Checkpoint, shelf: Shelf, stretches: int, nbytes: int) -> Mapping[str, list[bytes]]:
    """Return short stretches from all over each shard, by range requests, kept for the next time."""
    kept = checkpoint.root / _IDENTITY
    with contextlib.suppress(OSError, ValueError, AttributeError):
        found = cast("dict[str, list[str]]", read_json(kept))
        if found.keys() == checkpoint.shards.keys():
            return {shard: [bytes.fromhex(piece) for piece in pieces] for shard, pieces in found.items()}

    def read(place: tuple[str, int]) -> bytes:
        shard, number = place
        at = max(checkpoint.shards[shard] - nbytes, 0) * number // stretches
        return read_whole(shelf.files, shard, at, min(at + nbytes, checkpoint.shards[shard]))

    places = [(shard, number) for shard in checkpoint.shards for number in range(1, stretches + 1)]
    with ThreadPoolExecutor(READERS) as pool:
        pieces = list(pool.map(read, places))
    by_shard = {s: pieces[i * stretches : (i + 1) * stretches] for i, s in enumerate(checkpoint.shards)}
    text = json.dumps({shard: [piece.hex() for piece in found] for shard, found in by_shard.items()})
    write_whole(kept, text.encode())
    return by_shard


def _small(files: Files) -> Iterator[str]:
    """Yield every file that is no weights and that a checkpoint takes along; a name that leads out is refused."""
    for name in sorted(files.entries):
        pure = PurePosixPath(name)
        if pure.is_absolute() or ".." in pure.parts or "\\" in name or "\0" in name:
            raise CheckpointError(f"a file is named {name!r}", where=files.where, fix=_OWNER)
        hidden = any(part.startswith(".") for part in pure.parts)
        if not hidden and (not is_weights(pure) or name == INDEX):
            yield name


def _fetch_small(files: Files, root: Path) -> None:
    missing = [name for name in _small(files) if not _is_here(files, root, name)]
    nbytes = sum(files.entries[name].nbytes for name in missing)
    if nbytes > _MAX_SMALL_NBYTES:
        largest = max(missing, key=lambda name: files.entries[name].nbytes)
        what = f"what is no weights has {nbytes / 1e9:,.1f} GB ('{largest}')"
        raise CheckpointError(what, where=files.where, fix="give an address that holds a checkpoint and nothing else")
    if not missing:
        return
    with _alone(root), ThreadPoolExecutor(READERS) as pool:
        list(pool.map(partial(_fetch_one, files, root), missing))


def _is_here(files: Files, root: Path, name: str) -> bool:
    """Whether a file is here as it is there; one without a checksum is fetched every time."""
    try:
        data = (root / name).read_bytes()
    except OSError:
        return False
    return files.entries[name].checksum is not None and _is_right(files, name, data)


def _is_right(files: Files, name: str, data: bytes) -> bool:
    entry = files.entries[name]
    if len(data) != entry.nbytes or entry.checksum is None:
        return len(data) == entry.nbytes
    digest = entry.checksum.begin(entry.nbytes)
    digest.update(data)
    return digest.hexdigest() == entry.checksum.value


def _fetch_one(files: Files, root: Path, name: str) -> None:
    for _ in range(2):  # what came wrong once may come right
        data = read_whole(files, name, 0, files.entries[name].nbytes)
        if _is_right(files, name, data):
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            write_whole(root / name, data)
            return
    what = f"'{name}' comes damaged: it has another hash than the listing says"
    raise CheckpointError(what, where=files.where, fix="a proxy on the way may change it; try another network")


@contextlib.contextmanager
def _alone(root: Path) -> Generator[None]:
    """Wait until nobody else writes small files here."""
    root.mkdir(parents=True, exist_ok=True)
    folder = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


def _json(files: Files, root: Path, name: str) -> dict[str, Any]:
    if name not in files.entries:
        raise CheckpointError(f"{name} is missing", where=files.where, fix="give an address that holds a checkpoint")
    return parse_json((root / name).read_bytes(), name, f"{files.where}/{name}", _OWNER)


def _header(files: Files, shard: str) -> tuple[bytes, int]:
    """Return the JSON of a shard's header, and the size of the shard."""
    nbytes = files.entries[shard].nbytes
    first = read_whole(files, shard, 0, min(FIRST_NBYTES, nbytes))
    end = LENGTH_NBYTES + header_length(first[:LENGTH_NBYTES], nbytes, shard)
    if end > len(first):
        first += read_whole(files, shard, len(first), end)
    return first[LENGTH_NBYTES:end], nbytes


def _single(files: Files) -> Promised:
    if SINGLE in files.entries:
        return {SINGLE: None}
    raise CheckpointError("there are no safetensors here", where=files.where, fix="give the address of a checkpoint")


def _checksums(files: Files, root: Path, shards: list[str]) -> dict[str, Checksum]:
    """Return what the shards should hash to: the Hub's word, a SHA256SUMS beside them, or an ETag that is an MD5."""
    sums = known_hashes(root, shards)
    found: dict[str, Checksum] = {}
    for shard in shards:
        told = files.entries[shard].checksum
        if told is not None and told.kind == "sha256":
            found[shard] = told
        elif shard in sums:
            found[shard] = Checksum("sha256", sums[shard].sha256, sums[shard].source)
        elif told is not None:
            found[shard] = told
    return found
