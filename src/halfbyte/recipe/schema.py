"""What a recipe may say: what happens to each role of a checkpoint, and how.

Nothing that follows from something else is a key: group sizes, tensor names and the blocks of config.json follow from
the format; fused groups, expert counts and name prefixes from the checkpoint. A key that is left out does not apply;
every choice that does apply is spelled out, so that no default hides in the code. The exceptions are the last keys of
`prune`: their defaults are the careful choices, and what is decided and published spells them out.

The classes here check, and are checked with pydantic. What a recipe has decided is plain values, in `decisions.py`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePath
from typing import TYPE_CHECKING, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from halfbyte.numerics.formats import FORMATS
from halfbyte.recipe import decisions
from halfbyte.recipe.decisions import (
    COMPENSATED,
    MOST_WEIGHT,
    Action,
    Activations,
    Backstop,
    Format,
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

# Roles that are kept as they are, whatever the format, and why.
KEPT_ROLES: Mapping[Role, str] = {
    "router": "engines build the router without a quantization method and cannot load a quantized one",
    "embed": "engines look embeddings up and have no quantized path for them",
    "head": "only ModelOpt's loader would read a quantized head",
    "vision": "engines keep vision towers unquantized, and their widths are not whole blocks",
    "projector": "engines keep projectors unquantized",
    "norm": "norms are vectors, not matrices",
    "other_buffers": "buffers are not weights",
}


@dataclass(frozen=True, slots=True)
class Target:
    """What a recipe can choose for a format that it writes, besides the scales: nothing where a tuple is empty."""

    activations: tuple[str, ...]
    kv_cache: tuple[str, ...]
    names_producer: bool  # its config block names the producer's version
    patterns: Literal["glob", "re:"]  # how its loaders spell "not quantized"


# vLLM applies KV scales to MLA attention only from ModelOpt's files, so only nvfp4 has a KV cache to choose.
TARGETS: Mapping[Format, Target] = {
    "int4": Target((), (), names_producer=False, patterns="re:"),
    "fp8_channel": Target(("none", "dynamic"), (), names_producer=False, patterns="re:"),
    "nvfp4": Target(("none", "calibrated"), ("none", "fp8", "fp8_cast"), names_producer=True, patterns="glob"),
    "nvfp4_ct": Target(("none", "calibrated"), (), names_producer=False, patterns="re:"),
    "mxfp4": Target(("none", "dynamic"), (), names_producer=True, patterns="re:"),
    "mxfp4_ct": Target(("none", "dynamic"), (), names_producer=False, patterns="re:"),
}


class Part(BaseModel):
    """A block of a recipe: unknown keys are errors, values have the type they look like, and the parts agree."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    def _contradictions(self) -> Iterator[Problem]:
        """What the keys of this part say against each other."""
        yield from ()

    @model_validator(mode="after")
    def _agree(self) -> Self:
        found = tuple(self._contradictions())
        if found:
            raise PydanticCustomError(CONTRADICTION, "the keys contradict each other", {"found": found})
        return self


class InputScale(Part):
    """Which calibration tokens decide the tensor scale of an expert's input."""

    per: PerInput = Field(
        description="layer (one value for all experts, as ModelOpt 0.47) or expert (as ModelOpt 0.41)"
    )
    min_tokens: int | None = Field(
        None, ge=1, description="the number of calibration tokens, at least 1, below which an expert gets the backstop"
    )
    backstop: Backstop | None = Field(
        None,
        description="layer_amax, modelopt (the largest of its peers, else 0.5) or all_experts (run it on all tokens)",
    )

    def _contradictions(self) -> Iterator[Problem]:
        for key in ("min_tokens", "backstop"):
            if self.per == "expert" and getattr(self, key) is None:
                yield Problem(f"missing key '{key}'", (key,), f"add '{key}': some experts see few tokens or none")
            if self.per == "layer" and getattr(self, key) is not None:
                yield Problem(f"'{key}' means nothing per layer", (key,), "remove it: all experts share one scale")


class EngineConfig(Part):
    """What the quantization block of config.json says that does not follow from the format."""

    producer_version: str | None = Field(
        None, min_length=1, description="the version that the block names as its producer's"
    )
    ignore_patterns: tuple[str, ...] | None = Field(
        None, strict=False, description="the patterns of modules left unquantized, as the engines read them"
    )
    ignore_roles: tuple[Role, ...] | None = Field(
        None, strict=False, description="the roles whose modules are listed by shortest unquantized prefix, as ModelOpt"
    )

    def _contradictions(self) -> Iterator[Problem]:
        if (self.ignore_patterns is None) == (self.ignore_roles is None):
            yield Problem(
                "the list of unquantized modules needs one of 'ignore_patterns' and 'ignore_roles'",
                ("ignore_roles",) if self.ignore_roles is not None else (),
                "give exactly one of them",
            )
        for key in ("ignore_patterns", "ignore_roles"):
            if getattr(self, key) == ():
                yield Problem(f"'{key}' is empty", (key,), "list what stays unquantized: engines quantize all the rest")


class Quantize(Part):
    """How the roles whose action is `quantize` are written."""

    format: Format = Field(description=f"the format to write: {either(list(TARGETS))}")
    scales: str = Field(
        description="how weight scales are chosen, such as max, mse or compensated for nvfp4, even for mxfp4"
    )
    activations: Activations | None = Field(
        None,
        description="none (weights only), calibrated (tensor scale from data, block scales at run time) or dynamic",
    )
    input_scale: InputScale | None = Field(None, description="the block that defines calibrated input scales")
    kv_cache: KvCache | None = Field(
        None, description="none, fp8 (calibrated scales) or fp8_cast (FP8 declared, no scales)"
    )
    kv_scale_min: float | None = Field(
        None, gt=0, description="the smallest scale that K and V may get, as ModelOpt 0.41 allows none below 1"
    )
    config: EngineConfig = Field(description="the block with what engines read in config.json")

    def _contradictions(self) -> Iterator[Problem]:
        if self.format == "bf16":
            yield Problem("bf16 is not quantized", ("format",), "remove 'quantize' and give the roles the action bf16")
        elif self.format == "fp8_block":
            yield Problem("fp8_block is only read", ("format",), f"use {either(list(TARGETS))}")
        else:
            yield from self._choices(TARGETS[self.format])
            yield from self._config(TARGETS[self.format])

    def _choices(self, target: Target) -> Iterator[Problem]:
        scales = FORMATS[self.format].encodes
        if self.scales not in scales:
            fix = suggest(self.scales, scales, f"use {either(scales)}")
            yield Problem(f"{self.format} has no scales '{self.scales}'", ("scales",), fix)
        for key in ("activations", "kv_cache"):
            value: str | None = getattr(self, key)
            allowed: tuple[str, ...] = getattr(target, key)
            if value is None and allowed:
                yield Problem(f"missing key '{key}'", (key,), f"add '{key}': {either(allowed)}")
            elif value is not None and not allowed:
                yield Problem(f"'{key}' means nothing for {self.format}", (key,), "remove it")
            elif value is not None and value not in allowed:
                yield Problem(f"{self.format} has no {key} '{value}'", (key,), f"use {either(allowed)}")
        if self.activations == "calibrated" and self.input_scale is None:
            yield Problem("missing key 'input_scale'", ("input_scale",), "add 'input_scale': {per: layer}")
        if self.kv_scale_min is not None and self.kv_cache != "fp8":
            yield Problem("nothing reads 'kv_scale_min'", ("kv_scale_min",), "remove it, or set kv_cache to fp8")
        if self.activations != "calibrated" and self.input_scale is not None:
            yield Problem(
                "nothing reads 'input_scale'", ("input_scale",), "remove it, or set activations to calibrated"
            )

    def _config(self, target: Target) -> Iterator[Problem]:
        version = self.config.producer_version
        if (version is not None) != target.names_producer:
            what = "missing key 'producer_version'" if version is None else f"{self.format} names no producer"
            fix = "add 'producer_version': the block names it" if version is None else "remove it"
            yield Problem(what, ("config", "producer_version"), fix)
        if self.config.ignore_roles is not None and target.patterns != "glob":
            fix = f"use ignore_patterns: the loaders of {self.format} read no globs"
            yield Problem(f"'ignore_roles' means nothing for {self.format}", ("config", "ignore_roles"), fix)
        for index, pattern in enumerate(self.config.ignore_patterns or ()):
            yield from _bad_pattern(pattern, target, self.format, ("config", "ignore_patterns", index))


def _bad_pattern(pattern: str, target: Target, name: str, path: tuple[str | int, ...]) -> Iterator[Problem]:
    """A pattern that the format's loaders would silently match with nothing."""
    regex = pattern.removeprefix("re:")
    if target.patterns == "glob":
        if regex != pattern:
            yield Problem(f"pattern '{pattern}' matches nothing for {name}", path, "write a glob, as in *self_attn*")
    elif regex == pattern and "*" in pattern:
        yield Problem(f"pattern '{pattern}' matches nothing for {name}", path, "write a regex, as in re:.*self_attn.*")
    elif regex != pattern:
        try:
            re.compile(regex)
        except re.error as error:
            yield Problem(f"pattern '{pattern}' is not a regular expression", path, f"repair it: {error}")


class Dataset(Part):
    """One source of calibration text."""

    domain: str = Field(min_length=1, description="the name under which its statistics are kept apart")
    source: str = Field(min_length=1, description="a data set's name on the Hub, or a .jsonl, .parquet or .txt file")
    subset: str | None = Field(None, min_length=1, description="the Hub's name of the configuration")
    split: str | None = Field(None, min_length=1, description="the Hub's name of the split")
    columns: tuple[str, ...] | None = Field(
        None, strict=False, description="the columns: one of text or messages, or texts that are the turns in order"
    )
    chat_template: bool = Field(description="true (messages through the model's template) or false (texts, one a line)")
    share: int = Field(ge=1, description="how many of the samples come from here, at least 1")

    def _contradictions(self) -> Iterator[Problem]:
        suffix = PurePath(self.source).suffix
        if suffix in {".jsonl", ".parquet", ".txt"}:
            for key in ("subset", "split"):
                if getattr(self, key) is not None:
                    yield Problem(f"a {suffix} file has no {key}", (key,), "remove it")
        elif self.split is None:
            yield Problem("missing key 'split'", ("split",), "add 'split': the Hub's name of it, such as train")
        if suffix == ".txt":
            if self.columns is not None:
                yield Problem("a .txt file has no columns", ("columns",), "remove it")
            if self.chat_template:
                yield Problem("a .txt file has no messages", ("chat_template",), "set it to false")
        elif not self.columns:
            yield Problem("missing key 'columns'", ("columns",), "add 'columns': the text or the messages to read")


class Calibrate(Part):
    """The tokens that the model runs on to measure its activations."""

    samples: int = Field(ge=1, description="the number of rows, at least 1")
    sequence_length: int = Field(ge=1, description="the number of tokens in a row, at least 1")
    rows: RowKind = Field(
        description="padded (a sample a row, cut or padded, as ModelOpt) or packed (full rows, samples kept apart)"
    )
    seed: int | None = Field(
        ge=0, lt=2**32, description="a whole number from 0 to 4294967295 that shuffles, or null for the first samples"
    )
    propagate: Propagate = Field(
        description="unquantized (layers see the source's activations, as ModelOpt) or quantized"
    )
    datasets: tuple[Dataset, ...] = Field(strict=False, description="the list of data sets")
    public_reap: bool | None = Field(
        None, description="true to also measure what the public REAP code would select, for longer, on the CPU"
    )

    def decided(self) -> decisions.Calibrate:
        """Return what this block decides, without what checked it."""
        return decisions.Calibrate.of(self.model_dump())

    def _contradictions(self) -> Iterator[Problem]:
        total = sum(dataset.share for dataset in self.datasets)
        if total != self.samples:
            what = f"the shares add up to {total}, but 'samples' is {self.samples}"
            yield Problem(what, ("samples",), f"set samples to {total}, or change the shares")


class Prune(Part):
    """Which routed experts go. The last four keys have defaults, which are the careful choices."""

    method: PruneMethod = Field(
        description="reap (the mean of gate weight times output norm over routed tokens), or another that "
        "prune/saliency.py defines"
    )
    statistics: PruneStatistics = Field(
        description="calibrate (measured on this recipe's data, in the same pass) or given (a file from an earlier run)"
    )
    keep: int | None = Field(None, ge=1, description="the number of experts kept in each layer, at least 1")
    drop: float | None = Field(None, gt=0, lt=1, description="the fraction removed in each layer, between 0 and 1")
    select: PruneSelect = Field(
        "mean", description="mean (one score from all domains) or max_min (the domain that loses most loses least)"
    )
    blend: Mapping[str, float] | None = Field(
        None, description="the block with a weight for each domain, at least 0, that each of its tokens counts with"
    )
    protect: bool = Field(True, description="true (experts with huge outputs always stay) or false")
    min_tokens: int = Field(
        1, ge=0, description="the number of tokens, at least 0, below which an expert was not observed and stays"
    )

    def _contradictions(self) -> Iterator[Problem]:
        if self.keep is not None and self.drop is not None:
            yield Problem("'keep' and 'drop' are both given", ("drop",), "remove one of them")
        if self.keep is None and self.drop is None:
            yield Problem("missing key 'keep' or 'drop'", (), "add 'keep': 192, or 'drop': 0.25")
        if self.blend is None:
            return
        if self.select == "max_min":
            yield Problem("'blend' means nothing for max_min", ("blend",), "remove it, or set select to mean")
        for domain, weight in self.blend.items():
            if not 0 <= weight <= MOST_WEIGHT:
                yield Problem(
                    f"{weight:g} cannot weigh '{domain}'", ("blend", domain), f"write a number from 0 to {MOST_WEIGHT}"
                )
        if not any(self.blend.values()):
            yield Problem("no domain of 'blend' weighs anything", ("blend",), "give one a weight above 0, or remove it")


class Recipe(Part):
    """One whole recipe, right by construction."""

    name: str = Field(
        pattern=r"^[a-z0-9][a-z0-9._-]*$", description="a name of small letters, digits, '.', '-' and '_'"
    )
    description: str = Field(min_length=1, description="one sentence about what comes out")
    roles: Mapping[Role, Action] = Field(
        description="the block that says keep (same bytes), bf16 (decoded) or quantize for every role of the checkpoint"
    )
    quantize: Quantize | None = Field(None, description="the block that says how the quantized roles are written")
    calibrate: Calibrate | None = Field(None, description="the block with the calibration data")
    prune: Prune | None = Field(None, description="the block that says which experts go")
    shards: str = Field(
        pattern=r"^(layers|[1-9][0-9]*[MG]B)$", description="layers (whole layers in a shard) or a size such as 5GB"
    )

    def decided(self) -> decisions.Recipe:
        """Return what this recipe decides, without what checked it."""
        return decisions.Recipe.of(self.model_dump())

    def _contradictions(self) -> Iterator[Problem]:
        yield from self._role_problems()
        yield from self._calibration_problems()
        yield from self._blend_problems()

    def _blend_problems(self) -> Iterator[Problem]:
        if self.prune is None or self.prune.blend is None or self.calibrate is None:
            return
        domains = {dataset.domain for dataset in self.calibrate.datasets}
        fix = f"weigh each domain of 'calibrate': {', '.join(sorted(domains))}"
        for domain in sorted(self.prune.blend.keys() - domains):
            yield Problem(f"no data set has the domain '{domain}'", ("prune", "blend", domain), fix)
        for domain in sorted(domains - self.prune.blend.keys()):
            yield Problem(f"'blend' does not weigh '{domain}'", ("prune", "blend"), fix)

    def _role_problems(self) -> Iterator[Problem]:
        for role, action in self.roles.items():
            if action != "keep" and role in KEPT_ROLES:
                verb = "quantized" if action == "quantize" else "decoded"
                yield Problem(f"'{role}' cannot be {verb}", ("roles", role), f"set it to keep: {KEPT_ROLES[role]}")
        quantized = [role for role, action in self.roles.items() if action == "quantize"]
        if quantized and self.quantize is None:
            yield Problem("missing key 'quantize'", ("roles", quantized[0]), "add 'quantize': how to write that role")
        if self.quantize is not None and not quantized:
            fix = "set a role's action to quantize, or remove 'quantize'"
            yield Problem("'quantize' is given, but no role is quantized", ("quantize",), fix)
        for index, role in enumerate((self.quantize.config.ignore_roles if self.quantize else None) or ()):
            if self.roles.get(role, "quantize") == "quantize":
                fix = "remove it here, or name it in 'roles' as kept"
                yield Problem(f"'{role}' is ignored, but not kept", ("quantize", "config", "ignore_roles", index), fix)
        if self.prune is not None and "routed_experts" not in self.roles:
            yield Problem("'prune' needs routed experts", ("prune",), "name routed_experts in 'roles'")
        if self.prune is None and set(self.roles.values()) <= {"keep"}:
            yield Problem("this recipe changes nothing", ("roles",), "quantize a role, or add 'prune'")

    def _calibration_problems(self) -> Iterator[Problem]:
        quantize, prune = self.quantize, self.prune
        readers = [
            ("quantize.activations", "none", quantize is not None and quantize.activations == "calibrated"),
            ("quantize.kv_cache", "fp8_cast", quantize is not None and quantize.kv_cache == "fp8"),
            ("quantize.scales", "mse", quantize is not None and quantize.scales == COMPENSATED),
            ("prune.statistics", "given", prune is not None and prune.statistics == "calibrate"),
        ]
        for key, instead, reads in readers:
            if reads and self.calibrate is None:
                fix = f"add 'calibrate', or set {key} to {instead}"
                yield Problem(f"'{key}' needs calibration data", tuple(key.split(".")), fix)
        if self.calibrate is not None and not any(reads for _, _, reads in readers):
            yield Problem("nothing reads 'calibrate'", ("calibrate",), "remove it, or set activations to calibrated")
        if quantize is not None and quantize.scales == COMPENSATED and self.shards != "layers":
            what = "compensated scales need whole layers in a shard: what a killed run had measured is not kept"
            yield Problem(what, ("shards",), "set shards to layers")
