"""Two checkpoints of which one is the other without some experts: which numbers of one mean which of the other.

The pruned one records which experts stayed, and on which weights that was done. Where those are the other's, experts
are compared by the numbers of the whole one, and of its routers only the rows that stayed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halfbyte.errors import UsageError
from halfbyte.models.model import Model
from halfbyte.plan.pruned import kept_in, router_rows
from halfbyte.plan.rules import ROUTER
from halfbyte.prune.plan_file import PrunePlan
from halfbyte.prune.record import read_record
from halfbyte.source.checkpoint import Checkpoint
from halfbyte.source.headers import TensorInfo
from halfbyte.source.identity import identity, short_name
from halfbyte.source.read import Reader


@dataclass(frozen=True, slots=True)
class Renumbered:
    """Which of A and B is pruned, and how."""

    pruned: str
    plan: PrunePlan

    @property
    def whole(self) -> str:
        """Return the name of the other one."""
        return "A" if self.pruned == "B" else "B"

    def sentence(self) -> str:
        """Return what went and what stayed."""
        counts, layers = set(self.plan.counts().values()), f"in each of {len(self.plan.layers)} layers"
        if len(counts) > 1:
            return f"{self.plan.counted()} experts stay, renumbered, {layers}"
        stay = counts.pop()
        return f"{self.plan.experts - stay} of {self.plan.experts} experts dropped, {stay} renumbered {layers}"

    def as_dict(self) -> dict[str, Any]:
        """Return the facts for --json."""
        counts = {str(layer): count for layer, count in self.plan.counts().items()}
        return {"pruned": self.pruned, "experts": self.plan.experts, "kept": counts}


def renumbering(a: Checkpoint, b: Checkpoint) -> Renumbered | None:
    """Return how one is the other, pruned; None where no record says so, or it is about others."""
    for name, pruned, whole in (("B", b, a), ("A", a, b)):
        try:
            record = read_record(pruned.root)
        except UsageError:  # which `audit` explains
            continue
        if record is not None and record.weights == short_name(identity(whole)):
            return Renumbered(name, record.plan)
    return None


def cut_routers(model: Model, plan: PrunePlan) -> Mapping[str, tuple[TensorInfo, ...]]:
    """Return the routers of the whole model as the stretches of their rows that stay."""
    kept = plan.kept()
    found: dict[str, tuple[TensorInfo, ...]] = {}
    for name, (place, info) in model.plain.items():
        experts = kept_in(kept, place.layer)
        if place.role == ROUTER and experts is not None:
            found[name] = router_rows(info, experts)
    return found


def read_rows(reader: Reader, stretches: tuple[TensorInfo, ...]) -> NDArray[np.uint8]:
    """Read stretches of a tensor as one."""
    return np.concatenate([reader.raw(stretch).reshape(-1) for stretch in stretches])


def cut_shape(stretches: tuple[TensorInfo, ...]) -> tuple[int, ...]:
    """Return the shape of stretches together."""
    return (sum(stretch.shape[0] for stretch in stretches), *stretches[0].shape[1:])
