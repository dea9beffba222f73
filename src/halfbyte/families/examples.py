"""Built-in headers of published checkpoints, for planning offline."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from halfbyte.checkpoint.folder import Checkpoint
from halfbyte.checkpoint.headers import TensorInfo, lay_out
from halfbyte.errors import UsageError
from halfbyte.families.kimi_k25.geometry import KIMI_K26, Geometry, release_config, release_shards
from halfbyte.machine.interrupts import gc_paused
from halfbyte.ui.suggest import did_you_mean

EXAMPLES: Mapping[str, Geometry] = {"kimi-k2.6": KIMI_K26}


def example(name: str) -> Checkpoint:
    """Return an example checkpoint by name. It has headers only; its `root` does not exist."""
    if name not in EXAMPLES:
        raise UsageError(f"unknown example '{name}'", where="--example", fix=did_you_mean(name, EXAMPLES))
    geometry = EXAMPLES[name]
    tensors: dict[str, TensorInfo] = {}
    shards: dict[str, int] = {}
    with gc_paused():
        for shard, specs in release_shards(geometry).items():
            head, infos = lay_out(specs, shard, metadata=False)  # as in Moonshot's release
            tensors.update((info.name, info) for info in infos)
            shards[shard] = len(head) + sum(info.nbytes for info in infos)
    checkpoint = Checkpoint(Path(f"example:{name}"), release_config(geometry), tensors, shards)
    return replace(checkpoint, index_nbytes=checkpoint.nbytes)
