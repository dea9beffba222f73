"""Which weights a checkpoint holds, told from some of its bytes: two fine-tunes have the same headers. And which model
its config makes of them.

Sixteen short stretches of each shard are hashed, a megabyte for a whole Kimi. That tells models apart; it is no proof
that nothing is damaged, which is what the known SHA-256s are for.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any, BinaryIO, cast

from halfbyte.machine.named_errors import naming
from halfbyte.source.checkpoint import Checkpoint, shard_path

_STRETCHES = 16
_STRETCH_NBYTES = 1024
_TEXT = "text_config"  # the part of a multimodal model's config that calibration runs
_STORED = "quantization_config"  # how weights are stored, which the weights themselves say


def identity(checkpoint: Checkpoint) -> dict[str, str]:
    """Return a short hash of each shard's size and of bytes from all over it."""
    if checkpoint.remote is not None:
        from halfbyte.source.remote.mirror import remote_identity  # noqa: PLC0415 - most sources are folders

        found = remote_identity(checkpoint, checkpoint.remote, _STRETCHES, _STRETCH_NBYTES)
        return {shard: _digest(checkpoint.shards[shard], stretches) for shard, stretches in found.items()}
    return {shard: _shard(checkpoint, shard, nbytes) for shard, nbytes in checkpoint.shards.items()}


def short_name(weights: Mapping[str, str]) -> str:
    """Return one short hash of a whole identity, for what is measured on these weights."""
    return hashlib.sha256(json.dumps(dict(weights), sort_keys=True).encode()).hexdigest()[:16]


def config_name(config: Mapping[str, Any]) -> str:
    """Return a short hash of a config.json's text model: the same weights compute something else under another."""
    inner = config.get(_TEXT)
    text = cast("Mapping[str, Any]", inner) if isinstance(inner, Mapping) else config
    read = {key: value for key, value in text.items() if key != _STORED}
    return hashlib.sha256(json.dumps(read, sort_keys=True).encode()).hexdigest()[:16]


def _shard(checkpoint: Checkpoint, shard: str, nbytes: int) -> str:
    last, path = max(nbytes - _STRETCH_NBYTES, 0), shard_path(checkpoint.root, shard)
    # The header, at the beginning, is in the plan already.
    places = [last * number // _STRETCHES for number in range(1, _STRETCHES + 1)]
    with naming(path), path.open("rb") as file:  # which asks again where a disk gives less than it was asked for
        return _digest(nbytes, [_stretch(file, place) for place in places])


def _stretch(file: BinaryIO, place: int) -> bytes:
    file.seek(place)
    return file.read(_STRETCH_NBYTES)


def _digest(nbytes: int, stretches: Iterable[bytes]) -> str:
    digest = hashlib.sha256(str(nbytes).encode())
    for stretch in stretches:
        digest.update(stretch)
    return digest.hexdigest()[:16]
