"""Identify a source: expected SHA-256 of its shards, its revision, and sampled hashes of its weights.

Expected hashes have three sources. `hf download --local-dir` writes .cache/huggingface/download/FILE.metadata with
commit, etag and time. In the Hub's cache, a file is a link to blobs/ETAG. For large files the etag is the SHA-256. A
folder may also contain a SHA256SUMS file as written by `sha256sum`.

Weights are identified by hashing samples of each shard, and the text model by hashing the config. Fine-tunes of one
model have the same headers, so 16 short samples of each shard are hashed, about 1 MB for Kimi-K2. This distinguishes
models. It does not detect damage; the expected SHA-256 hashes do.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

from halfbyte.checkpoint.contained_paths import HUB_REPOSITORY, hub_blob
from halfbyte.checkpoint.folder import SUMS, Checkpoint, shard_path
from halfbyte.checkpoint.untrusted_files import plain_bytes, plain_text
from halfbyte.machine.os_errors import adding_filename
from halfbyte.ui.escape import pasted

_SHA256_HEX = re.compile("[0-9a-f]{64}")
COMMIT_HASH = re.compile("[0-9a-f]{40}")

_SAMPLES = 16
_SAMPLE_NBYTES = 1024
_TEXT = "text_config"  # the part of a multimodal model's config that calibration runs
_STORED = "quantization_config"  # how weights are stored, which the tensors show


@dataclass(frozen=True, slots=True)
class KnownHash:
    """The expected SHA-256 of a shard, its source, and the command to run on a mismatch."""

    sha256: str
    source: str
    remedy: str


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
    if snapshot.parent.name == "snapshots" and HUB_REPOSITORY.fullmatch(snapshot.parent.parent.name):
        return _repository_name(snapshot), snapshot.name
    noted = {entry[0] if (entry := _read_metadata(root, shard)) is not None else None for shard in shards}
    commit = noted.pop() if len(noted) == 1 else None
    return snapshot.name, commit if commit is not None and COMMIT_HASH.fullmatch(commit) else None


def _repository_name(snapshot: Path) -> str:
    return snapshot.parent.parent.name.removeprefix("models--").replace("--", "/", 1)


def _from_cache(root: Path, shard: str) -> KnownHash | None:
    etag = hub_blob(root, Path(shard))
    if etag is None or not _SHA256_HEX.fullmatch(etag):
        return None
    snapshot = root.resolve()
    return KnownHash(etag, "the Hub", _download(_repository_name(snapshot), shard, snapshot.name))


def _from_download(root: Path, shard: str) -> KnownHash | None:
    entry = _read_metadata(root, shard)
    if entry is None or not _SHA256_HEX.fullmatch(entry[1]):
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


def identity(checkpoint: Checkpoint) -> dict[str, str]:
    """Return a short hash of each shard's size and samples."""
    if checkpoint.remote is not None:
        from halfbyte.checkpoint.remote.mirror import remote_identity  # noqa: PLC0415 - most sources are folders

        samples = remote_identity(checkpoint, checkpoint.remote, _SAMPLES, _SAMPLE_NBYTES)
        return {shard: _digest(checkpoint.shards[shard], pieces) for shard, pieces in samples.items()}
    return {shard: _shard(checkpoint, shard, nbytes) for shard, nbytes in checkpoint.shards.items()}


def short_name(weights: Mapping[str, str]) -> str:
    """Return one short hash of an identity, to label measurements on these weights."""
    return hashlib.sha256(json.dumps(dict(weights), sort_keys=True).encode()).hexdigest()[:16]


def config_name(config: Mapping[str, Any]) -> str:
    """Return a short hash of the text model's config, without its quantization_config."""
    inner = config.get(_TEXT)
    text = cast("Mapping[str, Any]", inner) if isinstance(inner, Mapping) else config
    hashed = {key: value for key, value in text.items() if key != _STORED}
    return hashlib.sha256(json.dumps(hashed, sort_keys=True).encode()).hexdigest()[:16]


def _shard(checkpoint: Checkpoint, shard: str, nbytes: int) -> str:
    last, path = max(nbytes - _SAMPLE_NBYTES, 0), shard_path(checkpoint.root, shard)
    # The plan already covers the header at the start of the file.
    offsets = [last * number // _SAMPLES for number in range(1, _SAMPLES + 1)]
    with adding_filename(path), path.open("rb") as file:  # buffered: repeats short reads
        return _digest(nbytes, [_sample(file, offset) for offset in offsets])


def _sample(file: BinaryIO, offset: int) -> bytes:
    file.seek(offset)
    return file.read(_SAMPLE_NBYTES)


def _digest(nbytes: int, samples: Iterable[bytes]) -> str:
    digest = hashlib.sha256(str(nbytes).encode())
    for sample in samples:
        digest.update(sample)
    return digest.hexdigest()[:16]
