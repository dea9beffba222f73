"""Validated recipes as plain dataclasses.

`schema.py` validates recipe files with pydantic. These classes do not depend on pydantic, so that a plan, which
contains its recipe, can run without it.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from fractions import Fraction
from typing import Any, Literal, cast

from halfbyte.methods.method import Method
from halfbyte.methods.registry import method_named, method_of
from halfbyte.options.convert import PruneMethod, PruneSelect

Role = Literal[
    "routed_experts",
    "shared_experts",
    "dense_mlp",
    "attention",
    "router",
    "embed",
    "head",
    "vision",
    "projector",
    "norm",
    "other_buffers",
]
Action = Literal["keep", "bf16", "quantize"]
PerInput = Literal["layer", "expert"]
Backstop = Literal["layer_amax", "modelopt", "all_experts"]
Activations = Literal["none", "calibrated", "fixed", "dynamic"]
KvCache = Literal["none", "fp8", "fp8_cast"]
RowKind = Literal["padded", "packed"]
Propagate = Literal["unquantized", "quantized"]
PruneStatistics = Literal["calibrate", "file"]

MOST_WEIGHT = 1_000_000  # upper limit of a domain's weight, so that sums of scores stay finite


@dataclass(frozen=True, slots=True, kw_only=True)
class InputScale:
    """The global scale of expert inputs: calibrated, or a constant."""

    per: PerInput | None = None
    min_tokens: int | None = None
    backstop: Backstop | None = None
    fixed: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Contents of config.json's quantization block that do not follow from the format."""

    producer_version: str | None = None
    ignore_patterns: tuple[str, ...] | None = None
    ignore_roles: tuple[Role, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantize:
    """The output format and settings of the roles whose action is `quantize`."""

    format: str  # a key of `formats.registry.FORMATS`
    scales: str
    activations: Activations | None = None
    input_scale: InputScale | None = None
    kv_cache: KvCache | None = None
    kv_scale_min: float | None = None
    config: EngineConfig

    @property
    def needs_hessians(self) -> bool:
        """Whether the method needs the Hessians of expert inputs."""
        return method_named(self.scales).needs_hessians

    def method_of(self, role: str) -> Method:
        """Return the method of a role's linears."""
        return method_of(role, self.scales)

    @property
    def stores_input_scales(self) -> bool:
        """Whether each linear stores a calibrated or fixed global scale of its input."""
        return self.activations in ("calibrated", "fixed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataset:
    """One source of calibration text."""

    domain: str
    source: str
    subset: str | None = None
    split: str | None = None
    columns: tuple[str, ...] | None = None
    chat_template: bool
    share: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibrate:
    """The calibration data and how the model runs on it."""

    samples: int
    sequence_length: int
    rows: RowKind
    seed: int | None
    propagate: Propagate
    datasets: tuple[Dataset, ...]
    public_reap: bool | None = None

    @staticmethod
    def of(block: Mapping[str, Any]) -> Calibrate:
        """Build from the output of `as_dict`. Only the key names are checked."""
        datasets = tuple(Dataset(**_with_tuples(dataset, "columns")) for dataset in block["datasets"])
        keys: dict[str, Any] = {**block, "datasets": datasets}
        return Calibrate(**keys)

    def as_dict(self) -> dict[str, Any]:
        """Return JSON-compatible data, including nulls."""
        return _as_json(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prune:
    """Expert pruning settings. prune/saliency.py defines the methods, prune/build_plan.py the selection rules."""

    method: PruneMethod
    statistics: PruneStatistics
    keep: int | None = None
    drop: float | None = None
    select: PruneSelect = "mean"
    blend: Mapping[str, float] | None = None
    protect: bool = True
    min_tokens: int = 1

    @staticmethod
    def of(block: Mapping[str, Any]) -> Prune:
        """Build from the output of `as_dict`. Only the key names are checked."""
        blend = block.get("blend")
        keys: dict[str, Any] = {**block, "blend": None if blend is None else dict(blend)}
        return Prune(**keys)

    def count(self, experts: int) -> int:
        """Return the number of kept experts. The number of dropped experts is rounded down, as in REAP's code."""
        if self.keep is not None:
            return self.keep
        assert self.drop is not None
        # Exact decimal arithmetic: 0.29 of 100 experts is 29, although the float 0.29 is slightly smaller.
        return experts - math.floor(Fraction(repr(self.drop)) * experts)

    def as_dict(self) -> dict[str, Any]:
        """Return JSON-compatible data, including nulls."""
        return _as_json(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """A complete recipe."""

    name: str
    description: str
    roles: Mapping[Role, Action]
    quantize: Quantize | None = None
    calibrate: Calibrate | None = None
    prune: Prune | None = None
    shards: str

    @staticmethod
    def of(block: Mapping[str, Any]) -> Recipe:
        """Build from the output of `as_dict`. Only the key names are checked."""
        quantize, calibrate, prune = block.get("quantize"), block.get("calibrate"), block.get("prune")
        blocks: dict[str, Any] = {
            "roles": dict(block["roles"]),
            "quantize": None if quantize is None else _quantize(quantize),
            "calibrate": None if calibrate is None else Calibrate.of(calibrate),
            "prune": None if prune is None else Prune.of(prune),
        }
        return Recipe(**{**block, **blocks})

    def as_dict(self) -> dict[str, Any]:
        """Return JSON-compatible data, including nulls such as a null seed."""
        return _as_json(self)

    @property
    def shard_nbytes(self) -> int | None:
        """The maximum shard size in bytes (decimal units, as on the Hub); None for one shard per layer."""
        if self.shards == "layers":
            return None
        return int(self.shards[:-2]) * {"MB": 10**6, "GB": 10**9}[self.shards[-2:]]

    def fingerprint(self) -> str:
        """Return the SHA-256 of the recipe without its name and description, which do not affect the output."""
        decided = {key: value for key, value in self.as_dict().items() if key not in ("name", "description")}
        canonical = json.dumps(_without_nulls(decided), sort_keys=True, separators=(",", ":"), allow_nan=False)
        return hashlib.sha256(canonical.encode()).hexdigest()


def _quantize(block: Mapping[str, Any]) -> Quantize:
    scale = block.get("input_scale")
    blocks: dict[str, Any] = {
        "input_scale": None if scale is None else InputScale(**scale),
        "config": EngineConfig(**_with_tuples(block["config"], "ignore_patterns", "ignore_roles")),
    }
    return Quantize(**{**block, **blocks})


def _with_tuples(block: Mapping[str, Any], *names: str) -> dict[str, Any]:
    """Return a block with the named lists converted to tuples."""
    return {key: tuple(value) if key in names and value is not None else value for key, value in block.items()}


def _as_json(value: Any) -> Any:
    if is_dataclass(value):
        return {field.name: _as_json(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {key: _as_json(inner) for key, inner in cast("Mapping[str, Any]", value).items()}
    return [_as_json(inner) for inner in cast("tuple[Any, ...]", value)] if isinstance(value, tuple) else value


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(v) for key, v in cast("dict[str, Any]", value).items() if v is not None}
    return [_without_nulls(inner) for inner in cast("list[Any]", value)] if isinstance(value, list) else value
