"""Published checkpoints that halfbyte knows by heart: their headers without their files, for planning offline."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from halfbyte.errors import UsageError
from halfbyte.machine.collector import paused
from halfbyte.source.checkpoint import Checkpoint
from halfbyte.source.geometry import KIMI_K26, Geometry, release_config, release_shards
from halfbyte.source.headers import TensorInfo, lay_out
from halfbyte.terminal.suggest import did_you_mean

EXAMPLES: Mapping[str, Geometry] = {"kimi-k2.6": KIMI_K26}


def example(name: str) -> Checkpoint:
    """Return a checkpoint by name. Its `root` does not exist: there is nothing to read but headers."""
    if name not in EXAMPLES:
        raise UsageError(f"no example is named '{name}'", where="--example", fix=did_you_mean(name, EXAMPLES))
    geometry = EXAMPLES[name]
    tensors: dict[str, TensorInfo] = {}
    shards: dict[str, int] = {}
    with paused():
        for shard, specs in release_shards(geometry).items():
            head, infos = lay_out(specs, shard)
            tensors.update((info.name, info) for info in infos)
            shards[shard] = len(head) + sum(info.nbytes for info in infos)
    checkpoint = Checkpoint(Path(f"example:{name}"), release_config(geometry), tensors, shards)
    return replace(checkpoint, index_nbytes=checkpoint.nbytes)
