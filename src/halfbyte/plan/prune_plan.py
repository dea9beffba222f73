"""The prune plan: the kept experts of each layer and the reasons, as a file that can be read, edited and applied.

    {"kind": "halfbyte prune plan", "version": 1,
     "router": {"experts": 384, "top_k": 8, "n_group": 1, "topk_group": 1},
     "rule": {"method": "reap", ...},                 null if the kept experts come from an imported list
     "non_uniform": false,                            true lets layers keep different numbers
     "edited": false,                                 true if the kept experts were changed by hand
     "source": {...}, "statistics": {...}, "coverage": {...},
     "kept_sha256": "...",
     "layers": {"1": {"count": 192, "kept": [...], "scores": [...], "reasons": {"17": "super expert"}}, ...}}

Layer numbers are those of the checkpoint, expert numbers those before pruning. `scores` has one number for each expert
of the source, null for unobserved ones, or is empty. `reasons` explains experts that are kept or dropped regardless of
their score. After editing `kept`, adjust `count`. The file is validated when it is read; information that an edit has
invalidated is removed: `coverage`, and reasons to keep experts that are now dropped.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from halfbyte.checkpoint.atomic_write import write_whole
from halfbyte.checkpoint.untrusted_files import parsed, plain_bytes, reject_duplicate_keys
from halfbyte.errors import UsageError
from halfbyte.plan.pruned_router import RouterShape
from halfbyte.recipe.decisions import Prune

# Why a layer keeps or drops an expert, as plan files say it.
SUPER = "super expert"
UNOBSERVED = "unobserved"
SUPER_DROPPED = "super expert, dropped by hand"
RESTORED = "restored"
KIND = "halfbyte prune plan"
VERSION = 1
PLAN = "prune-plan.json"
CHOSEN_ON = "chosen_on"  # in `source`: the weights the plan was chosen on, if different


@dataclass(frozen=True, slots=True)
class LayerChoice:
    """One layer: its kept experts in ascending order, the score of every expert, and reasons other than the score."""

    kept: tuple[int, ...]
    scores: tuple[float | None, ...] = ()
    reasons: Mapping[int, str] = field(default_factory=dict[int, str])

    def as_dict(self) -> dict[str, Any]:
        """Return the layer's JSON data."""
        reasons = {str(expert): reason for expert, reason in sorted(self.reasons.items())}
        return {"count": len(self.kept), "kept": list(self.kept), "scores": list(self.scores), "reasons": reasons}


@dataclass(frozen=True, slots=True, kw_only=True)
class PrunePlan:
    """The plan of all MoE layers. `non_uniform` is set if they keep different numbers."""

    router: RouterShape
    layers: Mapping[int, LayerChoice]
    rule: Prune | None
    source: Mapping[str, Any] = field(default_factory=dict[str, Any])
    statistics: Mapping[str, Any] = field(default_factory=dict[str, Any])
    coverage: Mapping[str, Any] = field(default_factory=dict[str, Any])
    non_uniform: bool = False
    edited: bool = False

    @property
    def experts(self) -> int:
        """How many experts a layer has before pruning."""
        return self.router.experts

    def kept(self) -> dict[int, tuple[int, ...]]:
        """Return the kept experts by layer."""
        return {layer: choice.kept for layer, choice in sorted(self.layers.items())}

    def counts(self) -> dict[int, int]:
        """Return the number of kept experts by layer."""
        return {layer: len(kept) for layer, kept in self.kept().items()}

    def counted(self) -> str:
        """Return the kept and total number of experts per layer, as text."""
        counts = sorted(set(self.counts().values()))
        kept = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
        return f"{kept} of {self.experts}"

    def kept_sha256(self) -> str:
        """Return a hash of the kept experts."""
        lists = {str(layer): list(kept) for layer, kept in self.kept().items()}
        return hashlib.sha256(json.dumps(lists, separators=(",", ":")).encode()).hexdigest()

    def as_dict(self) -> dict[str, Any]:
        """Return the plan as JSON data."""
        return {
            "kind": KIND,
            "version": VERSION,
            "router": asdict(self.router),
            "rule": None if self.rule is None else self.rule.as_dict(),
            "non_uniform": self.non_uniform,
            "edited": self.edited,
            "source": dict(self.source),
            "statistics": dict(self.statistics),
            "coverage": dict(self.coverage),
            "kept_sha256": self.kept_sha256(),
            "layers": {str(layer): choice.as_dict() for layer, choice in sorted(self.layers.items())},
        }

    @staticmethod
    def of(content: Any, *, layers_expected: Collection[int] | None = None, where: str = PLAN) -> PrunePlan:
        """Build a plan from JSON data; UsageError on the first problem."""
        from halfbyte.plan.prune_plan_checks import checked_plan  # noqa: PLC0415 - it imports this module

        return checked_plan(content, layers_expected=layers_expected, where=where)


def plan_text(plan: PrunePlan) -> str:
    """Return the file's text: stable, with each list on one line for readable diffs."""
    data = plan.as_dict()
    layers = data.pop("layers")
    lines = [f"  {json.dumps(key)}: {_json(value)}," for key, value in data.items()]
    blocks: list[str] = []
    for layer, choice in layers.items():
        inner = ",\n".join(f"      {json.dumps(key)}: {_json(value)}" for key, value in choice.items())
        blocks.append(f"    {json.dumps(layer)}: {{\n{inner}\n    }}")
    return "\n".join(["{", *lines, '  "layers": {', ",\n".join(blocks), "  }", "}", ""])


def write_prune_plan(path: Path, plan: PrunePlan) -> None:
    """Write the plan atomically."""
    write_whole(path, plan_text(plan).encode())


def read_prune_plan(path: Path, *, layers_expected: Collection[int] | None = None) -> PrunePlan:
    """Read and validate a plan."""
    return PrunePlan.of(read_json(path), layers_expected=layers_expected, where=str(path))


def read_json(path: Path) -> Any:
    """Parse a JSON file; UsageError if it cannot be read or is invalid."""
    try:
        return parsed(plain_bytes(path), reject_duplicate_keys)
    except OSError as error:
        what = f"the file cannot be read: {error.strerror or error}"
        raise UsageError(what, where=str(path), fix="check the path") from None
    except ValueError as error:
        what = f"this is not JSON: {error}"
        raise UsageError(what, where=str(path), fix="repair it, or pass another file") from None


def _json(value: Any) -> str:
    return json.dumps(value, allow_nan=False)


def is_score(value: Any) -> bool:
    """Whether a JSON value is a valid score, or null for an unknown one."""
    if value is None:
        return True
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value) and value >= 0
