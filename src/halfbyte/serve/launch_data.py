"""Load and validate data/*.yaml: engines, rules and their conditions, drafts and published commands.

An unknown key or a wrong type is reported with the key and its line, as in a recipe.

A rule's conditions are compared with the facts of a launch. A fact is text, a number, a version, a boolean, or None if
unknown. None matches no text and no bound, and counts as false. Text may contain `*`, a list matches if one of its
items does, and a bound is written as "< 0.26".
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import cache
from importlib.resources import files
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, RootModel, ValidationError, field_validator, model_validator

from halfbyte.errors import RecipeError, UsageError
from halfbyte.recipe.errors import explain
from halfbyte.recipe.strict_yaml import Document, parse_yaml
from halfbyte.ui.suggest import did_you_mean

Facts = Mapping[str, Any]
Words = str | tuple[str, ...] | None

_BOUND = re.compile(r"(<=|>=|<|>|=)\s*([0-9][0-9a-z.]*)")
_COMPARE: Mapping[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "=": operator.eq,
}

SWITCH = "?"  # suffix of a flag without a value


class When(BaseModel):
    """The conditions of a rule; a condition that is not set always holds."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    # Text. `format` is the first part of `quantization`: nvfp4, mxfp4, int4, fp8 or bf16.
    engine: Words = None
    build: Words = None  # "none" for a release
    vendor: Words = None  # nvidia, amd or cpu
    arch: Words = None
    interconnect: Words = None
    format: Words = None
    quantization: Words = None
    activations: Words = None
    family: Words = None
    emulated_activations: Words = None  # the value of --activations, or "none"
    checkpoint_kv: Words = None  # the KV cache format declared in config.json, or "none"
    moe_backend: Words = None  # the chosen backend, or "none" for the engine's default
    # Booleans.
    mla: bool | None = None
    vision: bool | None = None
    text_only: bool | None = None
    pruned: bool | None = None
    uneven: bool | None = None
    ep: bool | None = None
    emulate: bool | None = None  # with the vLLM plugin: 4-bit weights are BF16 for the engine's kernels
    eager: bool | None = None  # the chosen value of enforce_eager
    draft: bool | None = None
    draft_mla: bool | None = None
    remote_tokenizer: bool | None = None
    linked: bool | None = None  # a snapshot in the Hub cache, whose files are symlinks
    hub: bool | None = None  # served by its Hub name, not from the folder
    revision: bool | None = None  # whether the commit is known
    fast_gate: bool | None = None  # whether SGLang's fast gate supports this number of experts
    # Bounds.
    version: str | None = None
    tp: str | None = None
    dcp: str | None = None
    context: str | None = None
    concurrency: str | None = None
    kept: str | None = None  # the share of experts that pruning kept
    experts_mod_4: str | None = None
    experts_left: str | None = None  # experts modulo the number of GPUs
    heads_mod_16: str | None = None  # of the heads on one GPU
    batched_tokens: str | None = None

    @field_validator("version", "tp", "dcp", "context", "concurrency", "kept", "experts_mod_4", "experts_left",
                     "heads_mod_16", "batched_tokens")  # fmt: skip
    @classmethod
    def _is_a_bound(cls, value: str | None) -> str | None:
        if value is not None and not _BOUND.fullmatch(value):
            raise ValueError(f"'{value}' is not a valid bound; write one like '>= 8192'")
        return value

    def holds(self, facts: Facts) -> bool:
        """Return whether all conditions are met."""
        return all(_met(getattr(self, name), facts[name], name) for name in sorted(self.model_fields_set))


def _met(condition: Any, fact: Any, name: str) -> bool:
    if condition is None:
        return True
    if isinstance(condition, bool):
        return bool(fact) is condition
    if fact is None:
        return False
    if name == "version":
        return _compared(condition, version_key(str(fact)), version_key)
    if isinstance(condition, str) and _BOUND.fullmatch(condition):
        return _compared(condition, float(fact), float)
    patterns = (condition,) if isinstance(condition, str) else condition
    return any(fnmatchcase(str(fact), pattern) for pattern in patterns)


def _compared(bound: str, fact: Any, read: Callable[[str], Any]) -> bool:
    parts = _BOUND.fullmatch(bound)
    assert parts is not None  # validated by When
    return _COMPARE[parts[1]](fact, read(parts[2]))


def version_key(text: str) -> tuple[int, int, int, int]:
    """Return the sort key of a version: 0.19.2rc1 is before 0.19.2, and `latest` after all."""
    match = re.match(r"v?(\d+)(?:\.(\d+))?(?:\.(\d+))?(a|b|rc|\.?dev)?", text)
    if not match:
        return (1 << 30, 0, 0, 0)
    major, minor, patch = (int(part or 0) for part in match.groups()[:3])
    return (major, minor, patch, -1 if match[4] else 0)


class _Row(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Draft(_Row):
    """A draft model for speculative decoding."""

    model: str
    mla: bool
    source: str


class Port(_Row):
    """The engine's port flag and its default port."""

    flag: str
    default: int


class Minimum(_Row):
    """The oldest engine version that supports launches matching `when`."""

    version: str
    source: str
    when: When = When()


class Container(_Row):
    """A container image and its `docker run` options."""

    image: str
    docker: tuple[str, ...]


class Build(Container):
    """An engine build with a published Kimi deployment."""

    version: str
    args: tuple[str, ...]
    splits: int | None = None
    source: str


class Engine(_Row):
    """How to start an engine; engines.yaml explains the fields."""

    title: str
    vendor: tuple[str, ...]
    command: tuple[str, ...]
    port: Port
    version: str
    image: str
    docker: tuple[str, ...]
    args: tuple[str, ...]
    minimum: tuple[Minimum, ...]
    flags: Mapping[str, str] = {}
    flags_of: str | None = None
    text_half: bool = False
    reserve_outside: bool = False
    builds: Mapping[str, Build] = {}
    vendors: Mapping[str, Container] = {}


class Rule(_Row):
    """A rule of settings.yaml: a setting, a variable, a warning or a refusal, and its conditions."""

    set: str | None = None
    env: str | None = None
    warn: str | None = None
    refuse: str | None = None
    fix: str = ""
    unless_set: str | None = None
    or_fewer_gpus: bool = False
    to: Any = None
    when: When = When()
    because: str = ""
    source: str

    @model_validator(mode="after")
    def _has_one_effect(self) -> Rule:
        effects = [name for name in ("set", "env", "warn", "refuse") if getattr(self, name) is not None]
        if len(effects) != 1:
            raise ValueError("a rule needs exactly one of set, env, warn and refuse")
        if effects[0] in ("set", "env") and not (self.because and "to" in self.model_fields_set):
            raise ValueError("a setting needs a value (`to`) and a reason (`because`)")
        if effects[0] == "refuse" and not self.fix:
            raise ValueError("a refusal needs a `fix`")
        return self


class SettingType(_Row):
    """The valid values of a setting for --set; setting_types.yaml explains the fields."""

    type: Literal["switch", "whole", "number", "share", "word", "address", "block"] = Field(alias="is")
    choices: Mapping[str, tuple[str, ...]] = {}
    needed: bool = False
    multiple: int = 1
    keys: Mapping[str, SettingType] = {}
    example: str | None = None
    option: str | None = None


class Compared(_Row):
    """The checkpoint that a published command serves, as halfbyte would create it."""

    example: str
    recipe: str
    family: str
    quantization: str
    activations: str
    kv_dtype: str | None = None
    experts: int = 384
    source_experts: int | None = None


class Published(_Row):
    """A launch command from a checkpoint's model card; published.yaml explains the fields."""

    title: str
    checkpoint: str
    source: str
    engine: str
    gpus: str
    options: Mapping[str, Any]
    model: Compared
    command: str
    note: str = ""
    instead: Mapping[str, str] = {}


class _Engines(RootModel[dict[str, Engine]]):
    pass


class _SettingTypes(RootModel[dict[str, SettingType]]):
    pass


class _Rules(_Row):
    rules: tuple[Rule, ...]


class _Drafts(RootModel[dict[str, tuple[Draft, ...]]]):
    pass


class _Publications(RootModel[dict[str, Published]]):
    pass


_Model = TypeVar("_Model", bound=BaseModel)


def read(text: str, file: str, model: type[_Model]) -> _Model:
    """Parse and validate a data file; raise RecipeError with the line of the first error."""
    document = parse_yaml(text, file)
    try:
        return model.model_validate(document.data)
    except ValidationError as error:
        raise _refused(error, document, model) from None


def read_rules(text: str, file: str) -> tuple[Rule, ...]:
    """Parse and validate a list of rules."""
    # parse_yaml requires a mapping at the top level.
    indented = "rules:\n" + "".join(f"  {line}\n" for line in text.splitlines())
    try:
        return read(indented, file, _Rules).rules
    except RecipeError as error:
        raise RecipeError(error.what, where=_one_line_up(error.where, file), fix=error.fix) from None


def _one_line_up(where: str, file: str) -> str:
    line, _, rest = where.removeprefix(f"{file}:").partition(":")
    return f"{file}:{int(line) - 1}:{rest}" if line.isdigit() else where


def _refused(error: ValidationError, document: Document, model: type[BaseModel]) -> RecipeError:
    first = error.errors()[0]
    path = tuple(part for part in first["loc"])
    if first["type"] == "extra_forbidden":
        return RecipeError(f"unknown key '{path[-1]}'", where=document.where(path), fix="correct or remove it")
    if issubclass(model, RootModel) or first["type"] == "value_error":
        return RecipeError(first["msg"].removeprefix("Value error, "), where=document.where(path), fix="correct it")
    return explain(error, document, model)


def _text(name: str) -> str:
    return files("halfbyte.serve").joinpath("data").joinpath(name).read_text(encoding="utf-8")


@cache
def engines() -> Mapping[str, Engine]:
    """Return the engines by name, each with its flags."""
    rows = read(_text("engines.yaml"), "engines.yaml", _Engines).root
    return {
        name: row.model_copy(update={"flags": rows[row.flags_of].flags}) if row.flags_of else row
        for name, row in rows.items()
    }


@cache
def rules() -> Sequence[Rule]:
    """Return the rules in order."""
    return read_rules(_text("settings.yaml"), "settings.yaml")


@cache
def setting_types() -> Mapping[str, SettingType]:
    """Return the type of each setting, by name."""
    return read(_text("setting_types.yaml"), "setting_types.yaml", _SettingTypes).root


@cache
def drafts() -> Mapping[str, Sequence[Draft]]:
    """Return the Eagle3 drafts by family."""
    return read(_text("drafts.yaml"), "drafts.yaml", _Drafts).root


@cache
def publications() -> Mapping[str, Published]:
    """Return the published commands by name."""
    return read(_text("published.yaml"), "published.yaml", _Publications).root


def engine(name: str) -> Engine:
    """Return an engine by name; raise UsageError with a suggestion if it is unknown."""
    if name not in engines():
        raise UsageError(f"unknown engine '{name}'", where="--engine", fix=did_you_mean(name, engines()))
    return engines()[name]


def published(name: str) -> Published:
    """Return a published command by name; raise UsageError with a suggestion if it is unknown."""
    if name not in publications():
        fix = did_you_mean(name, publications())
        raise UsageError(f"unknown published command '{name}'", where="--like", fix=fix)
    return publications()[name]


def minimum_version(row: Engine, facts: Facts) -> Minimum | None:
    """Return the oldest version that supports this launch, or None."""
    return next((minimum for minimum in row.minimum if minimum.when.holds(facts)), None)
