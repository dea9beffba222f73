"""What a plan means to the person who reads it: sizes by role, memory, and what changes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from halfbyte.machine.direct_io import PIECE_NBYTES
from halfbyte.numerics.chunks import run_threads
from halfbyte.plan.manifest import Plan, different_parts
from halfbyte.plan.rules import ENCODE, KEEP
from halfbyte.write import WAITING_NBYTES

_COPIES = 3  # a job's source, its result, and what kernels keep in between


@dataclass(frozen=True, slots=True)
class RoleSummary:
    """One role's fate."""

    role: str
    action: str
    tensors: int
    read_nbytes: int
    write_nbytes: int

    def as_dict(self) -> dict[str, Any]:
        """Return the row as the table and the JSON show it."""
        return {
            "role": self.role,
            "action": self.action,
            "tensors": self.tensors,
            "read_nbytes": self.read_nbytes,
            "write_nbytes": self.write_nbytes,
        }


def by_role(plan: Plan) -> list[RoleSummary]:
    """Return the roles in the order of their size."""
    words = {KEEP: "keep, byte for byte", "bf16": "decode to bf16"}
    if plan.recipe.quantize is not None:
        words[ENCODE] = f"{plan.recipe.quantize.format}, {plan.recipe.quantize.scales}"
    rows: dict[tuple[str, str], list[int]] = {}
    for job in plan.jobs:
        row = rows.setdefault((job.role, words[job.action]), [0, 0, 0])
        row[0] += len(job.outputs)
        row[1] += job.read_nbytes
        row[2] += job.write_nbytes
    found = [RoleSummary(role, action, *counts) for (role, action), counts in rows.items()]
    return sorted(found, key=lambda row: -row.read_nbytes)


def peak_memory_nbytes(plan: Plan, threads: int | None = None) -> int:
    """Return an upper bound of the memory that jobs in flight hold; it depends on no number of layers."""
    changed = [max(job.read_nbytes, job.write_nbytes) for job in plan.jobs if job.action != KEEP]
    return (threads or run_threads()) * _COPIES * max(changed, default=PIECE_NBYTES) + WAITING_NBYTES


def as_dict(plan: Plan) -> dict[str, Any]:
    """Return everything that `halfbyte plan` says."""
    return {
        **plan.as_dict(),
        "roles": [row.as_dict() for row in by_role(plan)],
        "tensors": sum(len(shard.tensors) for shard in plan.shards),
        "peak_memory_nbytes": peak_memory_nbytes(plan),
    }


def difference(found: Mapping[str, Any], plan: Plan) -> list[str]:
    """Return which parts of another plan.json differ from this plan."""
    return different_parts(found.get("parts"), plan)
