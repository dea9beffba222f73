"""The plan of a pruning: which experts of which layer stay, and why. As a file it can be read, edited and applied.

    {"kind": "halfbyte prune plan", "version": 1,
     "router": {"experts": 384, "top_k": 8, "n_group": 1, "topk_group": 1},
     "rule": {"method": "reap", ...},                 null where the kept experts come from somebody else's list
     "non_uniform": false,                            true lets layers keep different numbers
     "edited": false,                                 true where somebody changed the kept experts by hand
     "source": {...}, "statistics": {...}, "coverage": {...},
     "kept_sha256": "...",
     "layers": {"1": {"count": 192, "kept": [...], "scores": [...], "reasons": {"17": "super expert"}}, ...}}

Layers are named by their number in the checkpoint, experts by theirs before pruning. `scores` has one number for each
expert of the source, null for those that were not observed; it is empty where there are none. `reasons` says why an
expert stays or goes whatever its score. Who edits `kept` edits `count` with it. All of it is checked when it is read;
what an edit made untrue is left out then: `coverage`, and reasons to stay of experts that go.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from halfbyte.errors import UsageError
from halfbyte.prune.router import RouterShape
from halfbyte.recipe.decisions import Prune
from halfbyte.source.foreign import parsed, plain_bytes, without_doubles
from halfbyte.write import write_whole

KIND = "halfbyte prune plan"
VERSION = 1
PLAN = "prune-plan.json"
CHOSEN_ON = "chosen_on"  # of a plan's source: the weights that it was made on, where it is applied to others


@dataclass(frozen=True, slots=True)
class LayerChoice:
    """Of one layer: who stays (ascending), the score of every expert, and who owes the choice to something else."""

    kept: tuple[int, ...]
    scores: tuple[float | None, ...] = ()
    reasons: Mapping[int, str] = field(default_factory=dict[int, str])

    def as_dict(self) -> dict[str, Any]:
        """Return it as the file has it."""
        reasons = {str(expert): reason for expert, reason in sorted(self.reasons.items())}
        return {"count": len(self.kept), "kept": list(self.kept), "scores": list(self.scores), "reasons": reasons}


@dataclass(frozen=True, slots=True, kw_only=True)
class PrunePlan:
    """Of all layers with routed experts. `non_uniform` is set where they keep different numbers."""

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
        """Return who stays, by layer."""
        return {layer: choice.kept for layer, choice in sorted(self.layers.items())}

    def counts(self) -> dict[int, int]:
        """Return how many stay, by layer."""
        return {layer: len(kept) for layer, kept in self.kept().items()}

    def counted(self) -> str:
        """Return how many of how many stay in a layer, in words."""
        counts = sorted(set(self.counts().values()))
        kept = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
        return f"{kept} of {self.experts}"

    def kept_sha256(self) -> str:
        """Return what identifies the choice, whatever the reasons for it."""
        lists = {str(layer): list(kept) for layer, kept in self.kept().items()}
        return hashlib.sha256(json.dumps(lists, separators=(",", ":")).encode()).hexdigest()

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON has it."""
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
    def of(found: Any, *, layers_expected: Collection[int] | None = None, where: str = PLAN) -> PrunePlan:
        """Return the plan that a file says; UsageError for the first thing that cannot be."""
        from halfbyte.prune.plan_checks import checked_plan  # noqa: PLC0415 - it makes these classes

        return checked_plan(found, layers_expected=layers_expected, where=where)


def plan_text(plan: PrunePlan) -> str:
    """Return the file's text: stable, and each list on a line, so that people and `diff` can read it."""
    whole = plan.as_dict()
    layers = whole.pop("layers")
    lines = [f"  {json.dumps(key)}: {_json(value)}," for key, value in whole.items()]
    blocks: list[str] = []
    for layer, choice in layers.items():
        inner = ",\n".join(f"      {json.dumps(key)}: {_json(value)}" for key, value in choice.items())
        blocks.append(f"    {json.dumps(layer)}: {{\n{inner}\n    }}")
    return "\n".join(["{", *lines, '  "layers": {', ",\n".join(blocks), "  }", "}", ""])


def write_prune_plan(path: Path, plan: PrunePlan) -> None:
    """Write the plan, whole or not at all."""
    write_whole(path, plan_text(plan).encode())


def read_prune_plan(path: Path, *, layers_expected: Collection[int] | None = None) -> PrunePlan:
    """Read a plan and check all of it."""
    return PrunePlan.of(read_json(path), layers_expected=layers_expected, where=str(path))


def read_json(path: Path) -> Any:
    """Return what a JSON file says; UsageError for a file that cannot be read or is none."""
    try:
        return parsed(plain_bytes(path), without_doubles)
    except OSError as error:
        what = f"the file cannot be read: {error.strerror or error}"
        raise UsageError(what, where=str(path), fix="check the path") from None
    except ValueError as error:
        what = f"this is not JSON: {error}"
        raise UsageError(what, where=str(path), fix="repair it, or give another file") from None


def _json(value: Any) -> str:
    return json.dumps(value, allow_nan=False)


def is_score(value: Any) -> bool:
    """Whether a value of a file is a score, or null for one that is not known."""
    if value is None:
        return True
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value) and value >= 0
