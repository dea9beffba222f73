"""Which weights a checkpoint holds, told from some of its bytes: two fine-tunes have the same headers. And which model
its config makes of them.

Sixteen short stretches of each shard are hashed, a megabyte for a whole Kimi. That tells models apart; it is no proof
that nothing is damaged, which is what the known SHA-256s are for.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from typing import Any, cast

from halfbyte.source.checkpoint import Checkpoint, shard_path

_STRETCHES = 16
_STRETCH_NBYTES = 1024
_TEXT = "text_config"  # the part of a multimodal model's config that calibration runs
_STORED = "quantization_config"  # how weights are stored, which the weights themselves say


def identity(checkpoint: Checkpoint) -> dict[str, str]:
    """Return a short hash of each shard's size and of bytes from all over it."""
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
    digest = hashlib.sha256(str(nbytes).encode())
    last = max(nbytes - _STRETCH_NBYTES, 0)
    file = os.open(shard_path(checkpoint.root, shard), os.O_RDONLY | os.O_CLOEXEC)
    try:
        for number in range(1, _STRETCHES + 1):  # the header, at the beginning, is in the plan already
            digest.update(os.pread(file, _STRETCH_NBYTES, last * number // _STRETCHES))
    finally:
        os.close(file)
    return digest.hexdigest()[:16]
