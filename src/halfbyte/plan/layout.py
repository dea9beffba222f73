"""Shard layout: the file, name and offset of every output tensor."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from halfbyte.checkpoint.headers import TensorInfo, TensorSpec, lay_out
from halfbyte.plan.rules import Job


@dataclass(frozen=True, slots=True)
class Shard:
    """One output file: its header bytes and the offsets of its tensors."""

    name: str
    head: bytes
    tensors: tuple[TensorInfo, ...]

    @property
    def nbytes(self) -> int:
        """Return the size of the file."""
        return self.tensors[-1].end if self.tensors else len(self.head)


def lay_out_shards(jobs: Sequence[Job], shard_nbytes: int | None) -> list[Shard]:
    """Split the outputs into shards in the model's order: one per layer, or filled greedily up to a size."""
    groups = list(_by_size(jobs, shard_nbytes) if shard_nbytes else _by_layer(jobs))
    names = [shard_name(number, len(groups)) for number in range(1, len(groups) + 1)]
    shards: list[Shard] = []
    for name, group in zip(names, groups, strict=True):
        head, tensors = lay_out(group, name)
        shards.append(Shard(name, head, tuple(tensors)))
    return shards


def shard_name(number: int, total: int) -> str:
    """Return the shard's file name in the style of Kimi's releases: five-digit number, six-digit total."""
    return "model.safetensors" if total == 1 else f"model-{number:05d}-of-{total:06d}.safetensors"


def _by_layer(jobs: Sequence[Job]) -> Iterator[list[TensorSpec]]:
    """Yield one group per layer, then one per role outside the layers (embeddings, head and norm together)."""
    groups: dict[tuple[bool, int, str], list[TensorSpec]] = {}
    for job in jobs:
        role = "" if job.layer is not None else ("text" if job.role in ("embed", "head", "norm") else job.role)
        groups.setdefault((job.layer is None, job.layer or 0, role), []).extend(job.outputs)
    for key in sorted(groups, key=lambda key: (key[0], key[1], key[2] != "text", key[2])):
        yield groups[key]


def _by_size(jobs: Sequence[Job], limit: int) -> Iterator[list[TensorSpec]]:
    """Yield groups filled in order; a tensor that would exceed the limit starts a new group."""
    group: list[TensorSpec] = []
    filled = 0
    for job in jobs:
        for spec in job.outputs:
            if group and filled + spec.nbytes > limit:
                yield group
                group, filled = [], 0
            group.append(spec)
            filled += spec.nbytes
    if group:
        yield group
