"""Recipe schema (pydantic): the action for each role of a checkpoint and its settings.

Derived values are not keys. Group sizes, tensor names and the config.json blocks follow from the format. Fused groups,
expert counts and name prefixes follow from the checkpoint. An omitted key does not apply, and every setting that
applies must be written out. The exceptions are the last keys of `prune`, whose conservative defaults are written to
plan.json. `decisions.py` holds the validated values as plain dataclasses.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import PurePath
from typing import TYPE_CHECKING, Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError, PydanticKnownError

from halfbyte.formats.format import RecipeKeys
from halfbyte.formats.registry import FORMATS, written_formats
from halfbyte.methods.registry import METHODS, methods_of
from halfbyte.recipe import decisions
from halfbyte.recipe.decisions import (
    MOST_WEIGHT,
    Action,
    Activations,
    Backstop,
    KvCache,
    PerInput,
    Propagate,
    PruneMethod,
    PruneSelect,
    PruneStatistics,
    Role,
    RowKind,
)
from halfbyte.recipe.errors import CONTRADICTION, Problem, either, suggest

if TYPE_CHECKING:
    from typing_extensions import Self

# Roles that no format quantizes, with the reason.
KEPT_ROLES: Mapping[Role, str] = {
    "router": "engines build the router without a quantization method and cannot load a quantized one",
    "embed": "engines look embeddings up and have no quantized path for them",
    "head": "only ModelOpt's loader reads a quantized head",
    "vision": "engines keep vision towers unquantized, and their widths are not multiples of the block size",
    "projector": "engines keep projectors unquantized",
    "norm": "norms are vectors, not matrices",
    "other_buffers": "buffers are not weights",
}


def _known_format(name: str) -> str:
    if name not in FORMATS:
        raise PydanticKnownError("literal_error", {"expected": ", ".join(f"'{known}'" for known in written_formats())})
    return name


class Part(BaseModel):
    """Base class of recipe blocks: no unknown keys, strict types, consistent settings."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    def _contradictions(self) -> Iterator[Problem]:
        """Yield the conflicts between the keys of this block."""
        yield from ()

    @model_validator(mode="after")
    def _agree(self) -> Self:
        problems = tuple(self._contradictions())
        if problems:
            raise PydanticCustomError(CONTRADICTION, "the keys contradict each other", {"problems": problems})
        return self


class InputScale(Part):
    """The global scale of expert inputs: calibrated, or a constant."""

    per: PerInput | None = Field(
        None, description="layer (one value for all experts, as ModelOpt 0.47) or expert (as ModelOpt 0.41)"
    )
    min_tokens: int | None = Field(
        None, ge=1, description="the number of calibration tokens, at least 1, below which an expert uses the backstop"
    )
    backstop: Backstop | None = Field(
        None,
        description="layer_amax, modelopt (largest amax of its peers, else 0.5) or all_experts (run on all tokens)",
    )
    fixed: float | None = Field(
        None,
        ge=1e-30,
        le=1e30,
        description="the constant scale (amax / 2688) of every input, such as 1.0; requires no calibration data",
    )

    def _contradictions(self) -> Iterator[Problem]:
        if (self.per is None) == (self.fixed is None):
            fix = "set exactly one: 'per' uses calibration data, 'fixed' does not"
            yield Problem("input_scale requires one of 'per' and 'fixed'", () if self.per is None else ("fixed",), fix)
        for key in ("min_tokens", "backstop"):
            if self.fixed is not None and getattr(self, key) is not None:
                yield Problem(f"'{key}' does not apply to a fixed scale", (key,), "remove it: no tokens are counted")
            if self.per == "expert" and getattr(self, key) is None:
                yield Problem(f"missing key '{key}'", (key,), f"add '{key}': some experts get few tokens or none")
            if self.per == "layer" and getattr(self, key) is not None:
                yield Problem(f"'{key}' does not apply to per: layer", (key,), "remove it: all experts share one scale")


class EngineConfig(Part):
    """Contents of config.json's quantization block that do not follow from the format."""

    producer_version: str | None = Field(None, min_length=1, description="the producer version written into the block")
    ignore_patterns: tuple[str, ...] | None = Field(
        None, strict=False, description="the patterns of unquantized modules, in the engines' syntax"
    )
    ignore_roles: tuple[Role, ...] | None = Field(
        None,
        strict=False,
        description="the roles whose modules are listed by shortest unquantized prefix, as in ModelOpt",
    )

    def _contradictions(self) -> Iterator[Problem]:
        if (self.ignore_patterns is None) == (self.ignore_roles is None):
            yield Problem(
                "the list of unquantized modules requires one of 'ignore_patterns' and 'ignore_roles'",
                ("ignore_roles",) if self.ignore_roles is not None else (),
                "set exactly one of them",
            )
        for key in ("ignore_patterns", "ignore_roles"):
            if getattr(self, key) == ():
                yield Problem(f"'{key}' is empty", (key,), "list the unquantized modules: engines quantize all others")


class Quantize(Part):
    """The output format and settings of the roles whose action is `quantize`."""

    format: Annotated[str, AfterValidator(_known_format)] = Field(
        description=f"the format to write: {either(written_formats())}"
    )
    scales: str = Field(description="the weight scale method, such as max, mse or gptq for nvfp4, even for mxfp4")
    activations: Activations | None = Field(
        None,
        description="none (weight-only), calibrated or fixed (stored global scale, dynamic block scales) or dynamic",
    )
    input_scale: InputScale | None = Field(None, description="the block for calibrated or fixed input scales")
    kv_cache: KvCache | None = Field(
        None, description="none, fp8 (calibrated scales) or fp8_cast (FP8 declared, no scales)"
    )
    kv_scale_min: float | None = Field(
        None,
        gt=0,
        description="the lower bound of calibrated K and V scales; 1.0, as in ModelOpt 0.41, gives 1 up to amax 448",
    )
    config: EngineConfig = Field(description="the block for the quantization config in config.json")

    def _contradictions(self) -> Iterator[Problem]:
        format = FORMATS[self.format]
        if format.is_plain:
            fix = "remove 'quantize' and set the roles to bf16"
            yield Problem(f"{self.format} is not a quantized format", ("format",), fix)
        elif format.recipe is None:
            yield Problem(f"{self.format} is a source format only", ("format",), f"use {either(written_formats())}")
        else:
            yield from self._choices(format.recipe)
            yield from self._config(format.recipe)

    def _choices(self, target: RecipeKeys) -> Iterator[Problem]:
        scales = methods_of(self.format)
        if self.scales not in scales:
            fix = suggest(self.scales, scales, f"use {either(scales)}")
            yield Problem(f"{self.format} does not support scales '{self.scales}'", ("scales",), fix)
        for key in ("activations", "kv_cache"):
            value: str | None = getattr(self, key)
            allowed: tuple[str, ...] = getattr(target, key)
            if value is None and allowed:
                yield Problem(f"missing key '{key}'", (key,), f"add '{key}': {either(allowed)}")
            elif value is not None and not allowed:
                yield Problem(f"'{key}' does not apply to {self.format}", (key,), "remove it")
            elif value is not None and value not in allowed:
                yield Problem(f"{self.format} does not support {key} '{value}'", (key,), f"use {either(allowed)}")
        yield from self._input_scales()
        if self.kv_scale_min is not None and self.kv_cache != "fp8":
            yield Problem("'kv_scale_min' has no effect", ("kv_scale_min",), "remove it, or set kv_cache to fp8")

    def _input_scales(self) -> Iterator[Problem]:
        """Yield conflicts between `activations` and `input_scale`."""
        required = {"calibrated": ("per", "{per: layer}"), "fixed": ("fixed", "{fixed: 1.0}")}
        if self.activations not in required:
            if self.input_scale is not None:
                fix = "remove it, or set activations to calibrated"
                yield Problem("'input_scale' has no effect", ("input_scale",), fix)
            return
        key, example = required[self.activations]
        if self.input_scale is None:
            yield Problem("missing key 'input_scale'", ("input_scale",), f"add 'input_scale': {example}")
        elif getattr(self.input_scale, key) is None:
            other = "fixed" if key == "per" else "calibrated"
            fix = f"set input_scale to {example}, or activations to {other}"
            yield Problem(f"{self.activations} activations require input_scale.{key}", ("input_scale",), fix)

    def _config(self, target: RecipeKeys) -> Iterator[Problem]:
        version = self.config.producer_version
        if (version is not None) != target.names_producer:
            what = (
                "missing key 'producer_version'"
                if version is None
                else f"'producer_version' does not apply to {self.format}"
            )
            fix = "add 'producer_version': it is written into the config block" if version is None else "remove it"
            yield Problem(what, ("config", "producer_version"), fix)
        if self.config.ignore_roles is not None and target.patterns != "glob":
            fix = f"use ignore_patterns: the loaders of {self.format} do not support globs"
            yield Problem(f"'ignore_roles' does not apply to {self.format}", ("config", "ignore_roles"), fix)
        for index, pattern in enumerate(self.config.ignore_patterns or ()):
            yield from _bad_pattern(pattern, target, self.format, ("config", "ignore_patterns", index))


def _bad_pattern(pattern: str, target: RecipeKeys, name: str, path: tuple[str | int, ...]) -> Iterator[Problem]:
    """Yield a problem if the format's loaders cannot use the pattern, so that it would match nothing."""
    regex = pattern.removeprefix("re:")
    if target.patterns == "glob":
        if regex != pattern:
            yield Problem(f"pattern '{pattern}' matches nothing for {name}", path, "write a glob, as in *lm_head*")
    elif regex == pattern and "*" in pattern:
        yield Problem(f"pattern '{pattern}' matches nothing for {name}", path, "write a regex, as in re:.*lm_head.*")
    elif regex != pattern:
        try:
            re.compile(regex)
        except re.error as error:
            yield Problem(f"pattern '{pattern}' is not a valid regular expression", path, f"fix it: {error}")


class Dataset(Part):
    """One source of calibration text."""

    domain: str = Field(min_length=1, description="the domain under which its statistics are collected")
    source: str = Field(min_length=1, description="a dataset name on the Hub, or a .jsonl, .parquet or .txt file")
    subset: str | None = Field(None, min_length=1, description="the dataset's configuration on the Hub")
    split: str | None = Field(None, min_length=1, description="the dataset's split on the Hub")
    columns: tuple[str, ...] | None = Field(
        None, strict=False, description="the columns: one with text or messages, or several with the turns in order"
    )
    chat_template: bool = Field(description="true (apply the chat template to messages) or false (plain text)")
    share: int = Field(ge=1, description="the number of samples from this dataset, at least 1")

    def _contradictions(self) -> Iterator[Problem]:
        suffix = PurePath(self.source).suffix
        if suffix in {".jsonl", ".parquet", ".txt"}:
            for key in ("subset", "split"):
                if getattr(self, key) is not None:
                    yield Problem(f"'{key}' does not apply to a {suffix} file", (key,), "remove it")
        elif self.split is None:
            yield Problem("missing key 'split'", ("split",), "add 'split': the split on the Hub, such as train")
        if suffix == ".txt":
            if self.columns is not None:
                yield Problem("'columns' does not apply to a .txt file", ("columns",), "remove it")
            if self.chat_template:
                yield Problem("a .txt file has no messages", ("chat_template",), "set it to false")
        elif not self.columns:
            yield Problem("missing key 'columns'", ("columns",), "add 'columns': the columns with the text or messages")


class Calibrate(Part):
    """The calibration data and how the model runs on it."""

    samples: int = Field(ge=1, description="the number of rows, at least 1; with rows: padded, one sample each")
    sequence_length: int = Field(ge=1, description="the number of tokens per row, at least 1")
    rows: RowKind = Field(
        description="padded (one sample per row, as in ModelOpt) or packed (full rows, attention within each sample)"
    )
    seed: int | None = Field(
        ge=0, lt=2**32, description="the shuffle seed, from 0 to 4294967295, or null to take the first samples"
    )
    propagate: Propagate = Field(
        description="unquantized (each layer gets the source's activations, as in ModelOpt) or quantized"
    )
    datasets: tuple[Dataset, ...] = Field(strict=False, description="the list of datasets")
    public_reap: bool | None = Field(
        None, description="true to also compute the public REAP code's scores; slower, CPU only"
    )

    def decided(self) -> decisions.Calibrate:
        """Return this block as plain values."""
        return decisions.Calibrate.of(self.model_dump())

    def _contradictions(self) -> Iterator[Problem]:
        total = sum(dataset.share for dataset in self.datasets)
        if total != self.samples:
            what = f"the shares add up to {total}, but 'samples' is {self.samples}"
            yield Problem(what, ("samples",), f"set samples to {total}, or change the shares")


class Prune(Part):
    """Selection of the routed experts to drop. The last four keys have conservative defaults."""

    method: PruneMethod = Field(
        description="reap (the mean of gate weight times output norm over routed tokens), or another method "
        "from prune/saliency.py"
    )
    statistics: PruneStatistics = Field(
        description="calibrate (measured in the same run on this recipe's data) or given (a file from an earlier run)"
    )
    keep: int | None = Field(None, ge=1, description="the number of experts to keep per layer, at least 1")
    drop: float | None = Field(None, gt=0, lt=1, description="the fraction to drop per layer, between 0 and 1")
    select: PruneSelect = Field(
        "mean", description="mean (one score over all domains) or max_min (minimize the loss of the worst domain)"
    )
    blend: Mapping[str, float] | None = Field(
        None, description="the block with a token weight for each domain, at least 0"
    )
    protect: bool = Field(True, description="true (always keep super experts with huge outputs) or false")
    min_tokens: int = Field(
        1, ge=0, description="the number of tokens, at least 0, below which an expert counts as unobserved and is kept"
    )

    def _contradictions(self) -> Iterator[Problem]:
        if self.keep is not None and self.drop is not None:
            yield Problem("'keep' and 'drop' are mutually exclusive", ("drop",), "remove one of them")
        if self.keep is None and self.drop is None:
            yield Problem("missing key 'keep' or 'drop'", (), "add 'keep': 192, or 'drop': 0.25")
        if self.blend is None:
            return
        if self.select == "max_min":
            yield Problem("'blend' does not apply to max_min", ("blend",), "remove it, or set select to mean")
        for domain, weight in self.blend.items():
            if not 0 <= weight <= MOST_WEIGHT:
                yield Problem(
                    f"{weight:g} is not a valid weight for '{domain}'",
                    ("blend", domain),
                    f"write a number from 0 to {MOST_WEIGHT}",
                )
        if not any(self.blend.values()):
            yield Problem("all weights in 'blend' are 0", ("blend",), "set one to a weight above 0, or remove 'blend'")


class Recipe(Part):
    """A complete recipe without its `release` block."""

    name: str = Field(
        pattern=r"^[a-z0-9][a-z0-9._-]*$", description="a name of lowercase letters, digits, '.', '-' and '_'"
    )
    description: str = Field(min_length=1, description="one sentence about the output")
    roles: Mapping[Role, Action] = Field(
        description="the block with keep (copied), bf16 (decoded) or quantize for every role of the checkpoint"
    )
    quantize: Quantize | None = Field(None, description="the block for the quantized roles")
    calibrate: Calibrate | None = Field(None, description="the block with the calibration data")
    prune: Prune | None = Field(None, description="the block for expert pruning")
    shards: str = Field(
        pattern=r"^(layers|[1-9][0-9]*[MG]B)$", description="layers (one shard per layer) or a size such as 5GB"
    )

    def decided(self) -> decisions.Recipe:
        """Return this recipe as plain values."""
        return decisions.Recipe.of(self.model_dump())

    def _contradictions(self) -> Iterator[Problem]:
        yield from self._role_problems()
        yield from self._calibration_problems()
        yield from self._blend_problems()

    def _blend_problems(self) -> Iterator[Problem]:
        if self.prune is None or self.prune.blend is None or self.calibrate is None:
            return
        domains = {dataset.domain for dataset in self.calibrate.datasets}
        fix = f"set a weight for each domain of 'calibrate': {', '.join(sorted(domains))}"
        for domain in sorted(self.prune.blend.keys() - domains):
            yield Problem(f"no dataset has the domain '{domain}'", ("prune", "blend", domain), fix)
        for domain in sorted(domains - self.prune.blend.keys()):
            yield Problem(f"'blend' has no weight for '{domain}'", ("prune", "blend"), fix)

    def _role_problems(self) -> Iterator[Problem]:
        for role, action in self.roles.items():
            if action != "keep" and role in KEPT_ROLES:
                verb = "quantized" if action == "quantize" else "decoded"
                yield Problem(f"'{role}' cannot be {verb}", ("roles", role), f"set it to keep: {KEPT_ROLES[role]}")
        quantized = [role for role, action in self.roles.items() if action == "quantize"]
        if quantized and self.quantize is None:
            yield Problem("missing key 'quantize'", ("roles", quantized[0]), "add 'quantize': its output format")
        if self.quantize is not None and not quantized:
            fix = "set a role's action to quantize, or remove 'quantize'"
            yield Problem("'quantize' is set, but no role is quantized", ("quantize",), fix)
        for index, role in enumerate((self.quantize.config.ignore_roles if self.quantize else None) or ()):
            if self.roles.get(role, "quantize") == "quantize":
                fix = "remove it here, or set it to keep in 'roles'"
                yield Problem(
                    f"'{role}' is ignored, but not set to keep",
                    ("quantize", "config", "ignore_roles", index),
                    fix,
                )
        if self.prune is not None and "routed_experts" not in self.roles:
            yield Problem("'prune' requires routed experts", ("prune",), "add routed_experts to 'roles'")
        if self.prune is None and set(self.roles.values()) <= {"keep"}:
            yield Problem("this recipe changes nothing", ("roles",), "quantize a role, or add 'prune'")

    def _calibration_problems(self) -> Iterator[Problem]:
        quantize, prune = self.quantize, self.prune
        hessians = quantize is not None and quantize.scales in METHODS and METHODS[quantize.scales].needs_hessians
        readers = [
            ("quantize.activations", "none", quantize is not None and quantize.activations == "calibrated"),
            ("quantize.kv_cache", "fp8_cast", quantize is not None and quantize.kv_cache == "fp8"),
            ("quantize.scales", "mse", hessians),
            ("prune.statistics", "file", prune is not None and prune.statistics == "calibrate"),
        ]
        for key, instead, reads in readers:
            if reads and self.calibrate is None:
                fix = f"add 'calibrate', or set {key} to {instead}"
                yield Problem(f"'{key}' requires calibration data", tuple(key.split(".")), fix)
        if self.calibrate is not None and not any(reads for _, _, reads in readers):
            yield Problem("'calibrate' has no effect", ("calibrate",), "remove it, or set activations to calibrated")
        if quantize is not None and hessians and self.shards != "layers":
            what = f"{quantize.scales} requires one shard per layer, because partial Hessians are not saved"
            yield Problem(what, ("shards",), "set shards to layers")
