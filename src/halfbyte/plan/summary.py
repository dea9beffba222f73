"""Plan summary: sizes by role, peak memory, and differences from another plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from halfbyte.checkpoint.atomic_write import WAITING_NBYTES
from halfbyte.machine.direct_io import PIECE_NBYTES
from halfbyte.machine.resources import run_threads
from halfbyte.plan.manifest import Plan, different_parts
from halfbyte.plan.rules import ENCODE, KEEP, stale_kv_scales

_KV_SCALES = "FP8 KV cache scales, calibrated"  # new tensors, listed apart from the attention weights
_COPIES = 3  # a job's source, its result, and the kernels' intermediate buffers


@dataclass(frozen=True, slots=True)
class RoleSummary:
    """Action and sizes of one role."""

    role: str
    action: str
    tensors: int
    read_nbytes: int
    write_nbytes: int

    def as_dict(self) -> dict[str, Any]:
        """Return the row for the table and the JSON output."""
        return {
            "role": self.role,
            "action": self.action,
            "tensors": self.tensors,
            "read_nbytes": self.read_nbytes,
            "write_nbytes": self.write_nbytes,
        }


def source_nbytes(plan: Plan) -> int:
    """Return the size of the source's shards; with --layers, the number of bytes read."""
    return sum(plan.checkpoint.shards.values()) if plan.layers is None else plan.read_nbytes


def by_role(plan: Plan) -> list[RoleSummary]:
    """Return the roles, largest first."""
    labels = {KEEP: "keep, byte for byte", "bf16": "decode to bf16"}
    if plan.recipe.quantize is not None:
        labels[ENCODE] = f"{plan.recipe.quantize.format}, {plan.recipe.quantize.scales}"
    rows: dict[tuple[str, str], list[int]] = {}
    for job in plan.jobs:
        action = _KV_SCALES if job.action == ENCODE and not job.linears else labels[job.action]
        row = rows.setdefault((job.role, action), [0, 0, 0])
        row[0] += len(job.outputs)
        row[1] += job.read_nbytes
        row[2] += job.write_nbytes
    if stale := len(stale_kv_scales(plan.model, plan.recipe)):
        rows["other_buffers", "drop, stale KV cache scales"] = [stale, 0, 0]
    summaries = [RoleSummary(role, action, *counts) for (role, action), counts in rows.items()]
    return sorted(summaries, key=lambda summary: -summary.read_nbytes)


def peak_memory_nbytes(plan: Plan, threads: int | None = None) -> int:
    """Return an upper bound on the memory of jobs in flight; it does not depend on the number of layers."""
    changed = [max(job.read_nbytes, job.write_nbytes) for job in plan.jobs if job.action != KEEP]
    return (threads or run_threads()) * _COPIES * max(changed, default=PIECE_NBYTES) + WAITING_NBYTES


def as_dict(plan: Plan) -> dict[str, Any]:
    """Return the data that `halfbyte plan --json` prints."""
    return {
        **plan.as_dict(),
        "roles": [row.as_dict() for row in by_role(plan)],
        "tensors": sum(len(shard.tensors) for shard in plan.shards),
        "peak_memory_nbytes": peak_memory_nbytes(plan),
    }


def difference(other: Mapping[str, Any], plan: Plan) -> list[str]:
    """Return the parts of another plan.json that differ from this plan."""
    return different_parts(other.get("parts"), plan)
