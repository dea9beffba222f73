"""Load and validate data/*.yaml: engines, rules, drafts and published commands.

An unknown key or a wrong type is reported with the key and its line, as in a recipe.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, RootModel, ValidationError, model_validator

from halfbyte.errors import RecipeError, UsageError
from halfbyte.recipe.errors import explain
from halfbyte.recipe.strict_yaml import Document, parse_yaml
from halfbyte.serve.conditions import Facts, When
from halfbyte.ui.suggest import did_you_mean

SWITCH = "?"  # suffix of a flag without a value


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
