"""What a recipe decides, as plain values.

`schema.py` says what a recipe may say and checks it. What it has decided is kept here, without the library that
checks: a plan holds its recipe, and can be carried out where only the plan is.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from fractions import Fraction
from typing import Any, Literal, cast

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
Format = Literal["bf16", "int4", "fp8_block", "fp8_channel", "nvfp4", "nvfp4_ct", "mxfp4", "mxfp4_ct"]
PerInput = Literal["layer", "expert"]
Backstop = Literal["layer_amax", "modelopt", "all_experts"]
Activations = Literal["none", "calibrated", "dynamic"]
KvCache = Literal["none", "fp8", "fp8_cast"]
RowKind = Literal["padded", "packed"]
Propagate = Literal["unquantized", "quantized"]
PruneMethod = Literal[
    "reap",
    "reap_softmax",
    "reap_public",
    "reap_g2",
    "reap_l2",
    "frequency",
    "ean",
    "weighted_ean",
    "man",
    "msan",
]
PruneStatistics = Literal["calibrate", "given"]
PruneSelect = Literal["mean", "max_min"]

MOST_WEIGHT = 1_000_000  # of a domain in a blend: sums of scores stay finite
COMPENSATED = "compensated"  # scales and codes by what each linear is given, see numerics/reference/compensate.py


@dataclass(frozen=True, slots=True, kw_only=True)
class InputScale:
    """Which calibration tokens decide the tensor scale of an expert's input."""

    per: PerInput
    min_tokens: int | None = None
    backstop: Backstop | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """What the quantization block of config.json says that does not follow from the format."""

    producer_version: str | None = None
    ignore_patterns: tuple[str, ...] | None = None
    ignore_roles: tuple[Role, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantize:
    """How the roles whose action is `quantize` are written."""

    format: Format
    scales: str
    activations: Activations | None = None
    input_scale: InputScale | None = None
    kv_cache: KvCache | None = None
    kv_scale_min: float | None = None
    config: EngineConfig


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
    """The tokens that the model runs on to measure its activations."""

    samples: int
    sequence_length: int
    rows: RowKind
    seed: int | None
    propagate: Propagate
    datasets: tuple[Dataset, ...]
    public_reap: bool | None = None

    @staticmethod
    def of(found: Mapping[str, Any]) -> Calibrate:
        """Return what `as_dict` was made from; nothing is checked but the names of the keys."""
        datasets = tuple(Dataset(**_with_tuples(dataset, "columns")) for dataset in found["datasets"])
        keys: dict[str, Any] = {**found, "datasets": datasets}
        return Calibrate(**keys)

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON has it, nulls included."""
        return _as_json(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prune:
    """Which routed experts go. Every method is defined in prune/saliency.py, every choice in prune/choose.py."""

    method: PruneMethod
    statistics: PruneStatistics
    keep: int | None = None
    drop: float | None = None
    select: PruneSelect = "mean"
    blend: Mapping[str, float] | None = None
    protect: bool = True
    min_tokens: int = 1

    @staticmethod
    def of(found: Mapping[str, Any]) -> Prune:
        """Return what `as_dict` was made from; nothing is checked but the names of the keys."""
        blend = found.get("blend")
        keys: dict[str, Any] = {**found, "blend": None if blend is None else dict(blend)}
        return Prune(**keys)

    def count(self, experts: int) -> int:
        """Return how many of so many experts stay. What a share drops is rounded down, as in REAP's code."""
        if self.keep is not None:
            return self.keep
        assert self.drop is not None
        # As the number was written: 0.29 of 100 experts are 29, though the nearest binary fraction is a bit less.
        return experts - math.floor(Fraction(repr(self.drop)) * experts)

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON has it, nulls included."""
        return _as_json(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """One whole recipe."""

    name: str
    description: str
    roles: Mapping[Role, Action]
    quantize: Quantize | None = None
    calibrate: Calibrate | None = None
    prune: Prune | None = None
    shards: str

    @staticmethod
    def of(found: Mapping[str, Any]) -> Recipe:
        """Return what `as_dict` was made from; nothing is checked but the names of the keys."""
        quantize, calibrate, prune = found.get("quantize"), found.get("calibrate"), found.get("prune")
        blocks: dict[str, Any] = {
            "roles": dict(found["roles"]),
            "quantize": None if quantize is None else _quantize(quantize),
            "calibrate": None if calibrate is None else Calibrate.of(calibrate),
            "prune": None if prune is None else Prune.of(prune),
        }
        return Recipe(**{**found, **blocks})

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON has it, nulls included: a seed of null is said, not left out."""
        return _as_json(self)

    @property
    def shard_nbytes(self) -> int | None:
        """The size that shards are filled to, in decimal units as on the Hub; None for whole layers."""
        if self.shards == "layers":
            return None
        return int(self.shards[:-2]) * {"MB": 10**6, "GB": 10**9}[self.shards[-2:]]

    def fingerprint(self) -> str:
        """SHA-256 of all that this recipe decides; its name and its words decide nothing."""
        decided = {key: value for key, value in self.as_dict().items() if key not in ("name", "description")}
        canonical = json.dumps(_without_nulls(decided), sort_keys=True, separators=(",", ":"), allow_nan=False)
        return hashlib.sha256(canonical.encode()).hexdigest()


def _quantize(found: Mapping[str, Any]) -> Quantize:
    scale = found.get("input_scale")
    blocks: dict[str, Any] = {
        "input_scale": None if scale is None else InputScale(**scale),
        "config": EngineConfig(**_with_tuples(found["config"], "ignore_patterns", "ignore_roles")),
    }
    return Quantize(**{**found, **blocks})


def _with_tuples(found: Mapping[str, Any], *names: str) -> dict[str, Any]:
    """Return a block whose lists are tuples, as values that nobody changes have them."""
    return {key: tuple(value) if key in names and value is not None else value for key, value in found.items()}


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
