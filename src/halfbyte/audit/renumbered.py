"""Map experts between a checkpoint and its pruned version.

The pruned checkpoint records its kept experts and the identity of its source. If the source is the other checkpoint,
experts are compared by their source index, and routers by their kept rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halfbyte.checkpoint.folder import Checkpoint
from halfbyte.checkpoint.headers import TensorInfo
from halfbyte.checkpoint.identity import identity, short_name
from halfbyte.checkpoint.reader import Reader
from halfbyte.errors import UsageError
from halfbyte.families.model import Model
from halfbyte.plan.prune_plan import PrunePlan
from halfbyte.plan.prune_record import read_record
from halfbyte.plan.pruned import kept_in, router_rows
from halfbyte.plan.rules import ROUTER


@dataclass(frozen=True, slots=True)
class Renumbered:
    """Which of A and B is pruned, and how."""

    pruned: str
    plan: PrunePlan

    @property
    def whole(self) -> str:
        """Return the name of the unpruned checkpoint."""
        return "A" if self.pruned == "B" else "B"

    def sentence(self) -> str:
        """Describe the dropped and kept experts."""
        counts, layers = set(self.plan.counts().values()), f"in each of {len(self.plan.layers)} layers"
        if len(counts) > 1:
            return f"{self.plan.counted()} experts kept and renumbered {layers}"
        kept = counts.pop()
        return f"{self.plan.experts - kept} of {self.plan.experts} experts dropped, {kept} renumbered {layers}"

    def as_dict(self) -> dict[str, Any]:
        """Return the facts for --json."""
        counts = {str(layer): count for layer, count in self.plan.counts().items()}
        return {"pruned": self.pruned, "experts": self.plan.experts, "kept": counts}


def renumbering(a: Checkpoint, b: Checkpoint) -> Renumbered | None:
    """Return the mapping if one is a recorded pruned version of the other, else None."""
    for name, pruned, whole in (("B", b, a), ("A", a, b)):
        try:
            record = read_record(pruned.root)
        except UsageError:  # reported by `audit`
            continue
        if record is not None and record.weights == short_name(identity(whole)):
            return Renumbered(name, record.plan)
    return None


def cut_routers(model: Model, plan: PrunePlan) -> Mapping[str, tuple[TensorInfo, ...]]:
    """Return the source ranges of the kept rows of each router."""
    kept = plan.kept()
    routers: dict[str, tuple[TensorInfo, ...]] = {}
    for name, (place, info) in model.plain.items():
        experts = kept_in(kept, place.layer)
        if place.role == ROUTER and experts is not None:
            routers[name] = router_rows(info, experts)
    return routers


def read_rows(reader: Reader, stretches: tuple[TensorInfo, ...]) -> NDArray[np.uint8]:
    """Read and concatenate ranges of a tensor."""
    return np.concatenate([reader.raw(stretch).reshape(-1) for stretch in stretches])


def cut_shape(stretches: tuple[TensorInfo, ...]) -> tuple[int, ...]:
    """Return the shape of the concatenated ranges."""
    return (sum(stretch.shape[0] for stretch in stretches), *stretches[0].shape[1:])
