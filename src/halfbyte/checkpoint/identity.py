"""Identify a checkpoint's weights by hashing samples of each shard, and its text model by hashing the config.

Fine-tunes of one model have the same headers, so 16 short samples of each shard are hashed, about 1 MB for Kimi-K2.
This distinguishes models. It does not detect damage; the known SHA-256 hashes do.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any, BinaryIO, cast

from halfbyte.checkpoint.folder import Checkpoint, shard_path
from halfbyte.machine.os_errors import naming

_SAMPLES = 16
_SAMPLE_NBYTES = 1024
_TEXT = "text_config"  # the part of a multimodal model's config that calibration runs
_STORED = "quantization_config"  # how weights are stored, which the tensors show


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
    with naming(path), path.open("rb") as file:  # buffered: repeats short reads
        return _digest(nbytes, [_sample(file, offset) for offset in offsets])


def _sample(file: BinaryIO, offset: int) -> bytes:
    file.seek(offset)
    return file.read(_SAMPLE_NBYTES)


def _digest(nbytes: int, samples: Iterable[bytes]) -> str:
    digest = hashlib.sha256(str(nbytes).encode())
    for sample in samples:
        digest.update(sample)
    return digest.hexdigest()[:16]
