"""Declare the options of a command as fields of a frozen dataclass, and read the declarations back.

    @dataclass(frozen=True, slots=True, kw_only=True)
    class AuditOptions:
        out_folder: Path = argument("OUT")
        sample: int = option("--sample", default=2, least=0, help="Groups of linears per layer to encode again.")

An annotation must be a type, not a string: modules that declare options do not postpone annotations.
"""

from collections.abc import Iterable, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from functools import cache
from types import NoneType
from typing import Any, Literal, TypeVar, cast, get_args, get_origin

T = TypeVar("T")
_DECLARATION = "declaration"


@dataclass(frozen=True, slots=True, kw_only=True)
class Declaration:
    """The part of an option that is not its name, type or default."""

    flags: tuple[str, ...] = ()  # "-o", "--out", "--verify/--no-verify"; none: an argument
    help: str = ""
    metavar: str | None = None
    required: bool = False
    least: float | None = None
    most: float | None = None
    above: float | None = None
    below: float | None = None
    kind: str | None = None  # how the command line parses and completes the value; see cli/value_types.py
    bare: str | None = None  # the value of an option that is given without one
    items: type | None = None  # a recipe writes a list of these; the command line one comma-separated value
    pattern: str | None = None  # checked in recipes; the command reports a bad value in its own words
    recipe: str | None = None  # what to write, as a noun phrase for recipe errors; None: not a key of the release block
    affects_output: bool = True  # whether the output bytes depend on it, so that plan.json records it


@dataclass(frozen=True, slots=True)
class Option:
    """One option or argument of a command."""

    name: str  # attribute of the dataclass, and key in a recipe
    type: Any  # of one value: int, float, str, bool, Path or Literal[...]
    multiple: bool
    default: Any
    declaration: Declaration

    @property
    def choices(self) -> tuple[str, ...]:
        """The allowed values; empty if there is no list of them."""
        return get_args(self.type) if get_origin(self.type) is Literal else ()

    @property
    def flag(self) -> str:
        """The long spelling on the command line."""
        return next(flag for flag in self.declaration.flags if flag.startswith("--")).partition("/")[0]


@dataclass(frozen=True, slots=True)
class Group:
    """Options that several commands share, as one attribute of their dataclasses."""

    name: str
    model: type


def option(*flags: str, default: Any = None, **declared: Any) -> Any:
    """Declare an option; see Declaration for the keywords. A required one has no default."""
    declaration = Declaration(flags=flags, **declared)
    metadata = {_DECLARATION: declaration}
    return field(metadata=metadata) if declaration.required else field(default=default, metadata=metadata)


def argument(metavar: str, *, required: bool = True, default: Any = None, **declared: Any) -> Any:
    """Declare a positional argument."""
    metadata = {_DECLARATION: Declaration(metavar=metavar, required=required, **declared)}
    return field(metadata=metadata) if required else field(default=default, metadata=metadata)


def group(model: type[T]) -> Any:
    """Declare the options of another dataclass as one attribute."""
    return field(default_factory=model)


@cache
def declared(model: type) -> tuple[Option | Group, ...]:
    """Return the options and groups of a dataclass, in declaration order."""
    return tuple(_read(item) for item in fields(model))


@cache
def options_of(model: type) -> Mapping[str, Option]:
    """Return a command's own options and arguments by name, without those of groups."""
    return {item.name: item for item in declared(model) if isinstance(item, Option)}


def _read(item: Field[Any]) -> Option | Group:
    if _DECLARATION not in item.metadata:
        return Group(item.name, cast("type", item.type))
    kind: Any = item.type
    inner = [arg for arg in get_args(kind) if arg is not NoneType]
    if NoneType in get_args(kind):
        (kind,) = inner
    multiple = get_origin(kind) is tuple
    default = None if item.default is MISSING else item.default
    return Option(item.name, get_args(kind)[0] if multiple else kind, multiple, default, item.metadata[_DECLARATION])


def to_argv(model: type, values: Mapping[str, Any], names: Iterable[str]) -> tuple[str, ...]:
    """Return the arguments that set these options, in the order of `names`; missing keys are omitted."""
    words: list[str] = []
    for name in names:
        row, value = options_of(model)[name], values.get(name)
        if value is None or value is False:
            continue
        if not row.declaration.flags:
            words.append(str(value))
        elif row.type is bool:
            words.append(row.flag)
        elif row.declaration.items is not None:
            words += [row.flag, ",".join(map(str, value))]
        else:
            words += [word for item in (value if row.multiple else (value,)) for word in (row.flag, str(item))]
    return tuple(words)
