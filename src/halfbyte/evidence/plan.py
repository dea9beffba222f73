"""The plan of a checkpoint and its prune plan, as far as the card and the report show them.

`plan/` and `engine/` write both files and own their formats; these records only read them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from halfbyte.checkpoint.output_folder import PLAN
from halfbyte.evidence.loops import Loops
from halfbyte.evidence.record import InvalidValueError, Record, decoded
from halfbyte.plan.prune_plan import PLAN as PRUNE_PLAN


@dataclass(frozen=True, slots=True, kw_only=True)
class InputScale:
    """How activation scales are set."""

    per: str | None = None
    fixed: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizeChoice:
    """The recipe's quantization."""

    scales: str | None = None
    activations: str | None = None
    input_scale: InputScale | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetChoice:
    """A data set for calibration."""

    domain: str | None = None
    source: Any = None
    split: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrateChoice:
    """The recipe's calibration."""

    rows: str | None = None
    propagate: str | None = None
    datasets: tuple[DatasetChoice, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipeChoices:
    """The choices of a recipe that the card describes."""

    name: str
    description: str
    quantize: QuantizeChoice | None = None
    calibrate: CalibrateChoice | None = None
    prune: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleSize:
    """Bytes of one role before and after."""

    role: str
    action: str
    tensors: int
    read_nbytes: int
    write_nbytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationFacts:
    """The data of the calibration statistics."""

    tokens_sha256: str | None = None
    rows: tuple[int, int] | None = None  # number of rows and tokens per row
    domains: Mapping[str, int] = field(default_factory=dict[str, int])  # tokens
    dtype: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlierPruning:
    """How the source of a quantized checkpoint was pruned."""

    sha256: str | None = None  # of the prune plan
    weights: str | None = None
    loops: Mapping[str, Any] | None = None  # the loop test of the pruned source


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanSummary(Record):
    """The plan that produced the weights."""

    kind = "plan"
    file = PLAN
    created_by = "halfbyte quantize SRC {out} -r RECIPE"
    version = None

    fingerprint: str
    parts: Mapping[str, str]  # digests of everything that determines the output bytes
    recipe: Mapping[str, Any]
    read_nbytes: int
    write_nbytes: int
    shards: Mapping[str, int]  # bytes
    roles: tuple[RoleSize, ...] = ()
    source: Mapping[str, str] = field(default_factory=dict[str, str])  # digest of each source shard
    calibration: CalibrationFacts | None = None
    command: tuple[str, ...] = ()  # with SRC and OUT for the folders
    statistics_sha256: str | None = None
    pruned_before: EarlierPruning | None = None

    def __post_init__(self) -> None:
        """Check the recipe."""
        decoded(RecipeChoices, self.recipe, ".recipe")

    @property
    def choices(self) -> RecipeChoices:
        """The choices of the recipe."""
        return decoded(RecipeChoices, self.recipe)

    def earlier_loops(self) -> Loops | None:
        """Return the loop test of the pruned source. The source's file is copied into the plan, valid or not."""
        loops = self.pruned_before.loops if self.pruned_before else None
        try:
            return None if loops is None else decoded(Loops, loops)
        except InvalidValueError:
            return None


@dataclass(frozen=True, slots=True, kw_only=True)
class PruneRule:
    """How the kept experts were selected."""

    method: str | None = None
    select: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterFacts:
    """The router before pruning."""

    experts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DomainCoverage:
    """Share of a domain's routing that the kept experts cover."""

    mean: float
    worst: float
    worst_layer: int
    mass: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PruneCoverage:
    """Coverage by domain."""

    domains: Mapping[str, DomainCoverage] = field(default_factory=dict[str, DomainCoverage])


@dataclass(frozen=True, slots=True, kw_only=True)
class PrunedLayer:
    """The experts of one layer that are protected from pruning, with the reason."""

    reasons: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True, slots=True, kw_only=True)
class PruneSummary(Record):
    """The prune plan: which experts were kept, and why."""

    kind = "prune"
    file = PRUNE_PLAN
    created_by = "halfbyte quantize SRC {out} -r RECIPE"
    version = None

    router: RouterFacts
    rule: PruneRule | None = None
    edited: bool = False
    kept_sha256: str | None = None
    statistics: CalibrationFacts = CalibrationFacts()
    coverage: PruneCoverage = PruneCoverage()
    layers: Mapping[str, PrunedLayer]
