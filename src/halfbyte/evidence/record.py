"""Typed evidence records: frozen dataclasses, and the strict JSON codec that reads and writes them.

The codec is our own, because evidence is also written by `quantize`, which runs on GPU hosts without pydantic, and
msgspec would be one more dependency for the few types used here: str, bool, int, float, None, Literal, Any, unions,
tuples, mappings with string keys, and dataclasses.

A field without a default must be in the file. Unknown fields are ignored, so that a later halfbyte can add fields
without a new version.
"""

from __future__ import annotations

import math
import types
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Literal,
    TypeGuard,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from halfbyte.checkpoint.atomic_write import write_whole
from halfbyte.checkpoint.untrusted_files import read_json
from halfbyte.endpoint.client import values_without_keys
from halfbyte.errors import CheckpointError
from halfbyte.evidence.jsonl import encoded

if TYPE_CHECKING:
    from typing_extensions import Self

MOST_NBYTES = 1 << 28  # per file; comparisons are the largest
FORMAT = "format"  # the key of the version in each file
OMIT = {"omit": True}  # metadata of a field that is written only if it differs from its default
MeasuredOn = Literal["nothing", "weights", "server", "outputs"]
_MOST_COUNT = 10**30  # larger integers are not plausible; perplexities and intervals may be larger
_NAMES = {str: "a string", bool: "true or false", int: "an integer", float: "a number", type(None): "null"}
_LONGEST_SHOWN = 40  # characters of an invalid value
_T = TypeVar("_T")


class InvalidRecordError(CheckpointError):
    """A file that is not a valid record of its kind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One evidence file under `halfbyte/` in an output folder."""

    kind: ClassVar[str]
    file: ClassVar[str]  # below `halfbyte/`
    created_by: ClassVar[str]  # the command, with {out} for the output folder
    version: ClassVar[int | None] = 1  # None: the file has its own version, checked elsewhere
    measured: ClassVar[MeasuredOn] = "nothing"

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a file. Raise FileNotFoundError if it is missing and InvalidRecordError if it is not a valid record."""
        try:
            if path.stat().st_size > MOST_NBYTES:
                raise cls._invalid(f"{path.name} is larger than {MOST_NBYTES >> 20} MiB", path)
            value: Any = read_json(path, MOST_NBYTES, finite=True)  # rejects NaN and Infinity
        except FileNotFoundError:
            raise
        except (OSError, ValueError):
            raise cls._invalid(f"cannot read {path.name}", path) from None
        return cls.of(value, path)

    @classmethod
    def of(cls, value: Any, path: Path | None = None) -> Self:
        """Return the record in a parsed file. Raise InvalidRecordError if it is not valid."""
        where = path or Path(cls.file)
        if not _is_object(value):
            raise cls._invalid(f"{where.name} is not a JSON object", where)
        if cls.version is not None:
            recorded: Any = value.get(FORMAT, 1)  # files without it have the fields of version 1
            if type(recorded) is not int or recorded != cls.version:
                what = f"{where.name} has format {_shown(recorded)}, but this halfbyte reads format {cls.version}"
                raise cls._invalid(what, where)
        try:
            return decoded(cls, value)
        except InvalidValueError as error:
            raise cls._invalid(f"{where.name} is not a valid {cls.kind} record: {error}", where) from None

    @classmethod
    def _invalid(cls, what: str, path: Path) -> InvalidRecordError:
        return InvalidRecordError(what, where=str(path), fix=f"run {cls.created_by.format(out='OUT')}")

    def as_json(self) -> dict[str, Any]:
        """Return the contents of the file."""
        head = {} if self.version is None else {FORMAT: self.version}
        return head | plain(self)

    def as_bytes(self) -> bytes:
        """Return the bytes of the file, without API keys."""
        return encoded(values_without_keys(self.as_json()), indent=1)

    def write(self, path: Path) -> None:
        """Write the file atomically."""
        write_whole(path, self.as_bytes())


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRecord(Record):
    """A measurement, with the SHA-256 of each file that it was made on (measured_files.py)."""

    measured_files: Mapping[str, str] = field(default_factory=dict[str, str], metadata=OMIT)
    measured_folder: str | None = field(default=None, metadata=OMIT)  # its name, which a server may report


class InvalidValueError(Exception):
    """A value that does not match its type, with the path to it."""

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.problem, self.path = problem, ""

    def under(self, step: str) -> InvalidValueError:
        """Prepend a step to the path."""
        self.path = step + self.path
        return self

    def __str__(self) -> str:
        return f"{self.path.lstrip('.')} {self.problem}".lstrip()


def decoded(kind: type[_T], value: Any, at: str = "") -> _T:
    """Return a JSON value as a type; `at` is its path in the file, for errors."""
    try:
        return _decoder(kind)(value)
    except InvalidValueError as error:
        raise error.under(at) from None


def plain(value: Any) -> Any:
    """Return a record, or a part of one, as JSON data."""
    if is_dataclass(value):
        items = ((name, getattr(value, name), omitted) for name, omitted in _fields(type(value)))
        return {name: plain(inner) for name, inner, omitted in items if inner not in omitted}
    if _is_mapping(value):
        return {str(key): plain(inner) for key, inner in value.items()}
    if _is_sequence(value):
        return [plain(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None  # JSON has no NaN and no infinity
    return value


@cache
def _fields(kind: type) -> list[tuple[str, tuple[Any, ...]]]:
    """Return the fields of a dataclass in the order of the file, measured files last, and their omitted values."""
    omitted: tuple[Any, ...] = (None, {})
    rows = [(row.name, omitted if "omit" in row.metadata else ()) for row in fields(kind)]
    return sorted(rows, key=lambda row: row[0].startswith("measured_"))


@cache
def _decoder(kind: Any) -> Callable[[Any], Any]:
    """Return a function that checks and converts a JSON value to a type."""
    origin, args = get_origin(kind), get_args(kind)
    if kind is Any:
        return lambda value: value
    if kind in _NAMES:
        return _scalar(kind)
    if origin is Literal:
        return _literal(args)
    if origin in (Union, types.UnionType):
        return _union(args)
    if origin is tuple and args[-1] is Ellipsis:
        return _sequence(_decoder(args[0]))
    if origin is tuple:
        return _fixed([_decoder(arg) for arg in args])
    if origin is not None and issubclass(origin, Mapping):
        return _mapping(_decoder(args[1]))
    assert isinstance(kind, type) and is_dataclass(kind), kind
    return _object(kind)


def _scalar(kind: type) -> Callable[[Any], Any]:
    accepted = (int, float) if kind is float else (kind,)

    def decode(value: Any) -> Any:
        if type(value) not in accepted or (kind in (int, float) and not _plausible(value)):
            raise InvalidValueError(f"is {_shown(value)}, not {_NAMES[kind]}")
        return value

    return decode


def _plausible(value: float) -> bool:
    return abs(value) < _MOST_COUNT if isinstance(value, int) else math.isfinite(value)


def _literal(values: tuple[Any, ...]) -> Callable[[Any], Any]:
    def decode(value: Any) -> Any:
        if not any(type(value) is type(choice) and value == choice for choice in values):
            raise InvalidValueError(f"is {_shown(value)}, not one of {', '.join(map(str, values))}")
        return value

    return decode


def _union(kinds: tuple[Any, ...]) -> Callable[[Any], Any]:
    """Try the types in order. If none fits, the error is that of the first type that accepts this kind of value."""
    optional = type(None) in kinds
    decoders = [_decoder(kind) for kind in kinds if kind is not type(None)]

    def decode(value: Any) -> Any:
        if value is None and optional:
            return None
        errors: list[InvalidValueError] = []
        for decoder in decoders:
            try:
                return decoder(value)
            except InvalidValueError as error:
                errors.append(error)
        raise max(errors, key=lambda error: len(error.path))  # the type that matches deepest

    return decode


def _sequence(item: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def decode(value: Any) -> tuple[Any, ...]:
        if not _is_list(value):
            raise InvalidValueError(f"is {_shown(value)}, not a list")
        items: list[Any] = []
        for at, inner in enumerate(value):
            try:
                items.append(item(inner))
            except InvalidValueError as error:
                raise error.under(f"[{at}]") from None
        return tuple(items)

    return decode


def _fixed(decoders: list[Callable[[Any], Any]]) -> Callable[[Any], Any]:
    def decode(value: Any) -> tuple[Any, ...]:
        if not _is_list(value) or len(value) != len(decoders):
            raise InvalidValueError(f"is {_shown(value)}, not a list of {len(decoders)}")
        items: list[Any] = []
        for at, (decoder, inner) in enumerate(zip(decoders, value, strict=True)):
            try:
                items.append(decoder(inner))
            except InvalidValueError as error:
                raise error.under(f"[{at}]") from None
        return tuple(items)

    return decode


def _mapping(item: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def decode(value: Any) -> dict[str, Any]:
        if not _is_object(value):
            raise InvalidValueError(f"is {_shown(value)}, not an object")
        items: dict[str, Any] = {}
        for key, inner in value.items():
            try:
                items[key] = item(inner)
            except InvalidValueError as error:
                raise error.under(f".{_shown(key)}") from None
        return items

    return decode


def _object(kind: type) -> Callable[[Any], Any]:
    hints = get_type_hints(kind)
    rows = [(row.name, row.default is MISSING and row.default_factory is MISSING) for row in fields(kind)]
    decoders: dict[str, Callable[[Any], Any]] = {}

    def decode(value: Any) -> Any:
        if not _is_object(value):
            raise InvalidValueError(f"is {_shown(value)}, not an object")
        given: dict[str, Any] = {}
        for name, required in rows:
            if name not in value:
                if required:
                    raise InvalidValueError("is missing").under(f".{name}")
                continue
            if name not in decoders:
                decoders[name] = _decoder(hints[name])
            try:
                given[name] = decoders[name](value[name])
            except InvalidValueError as error:
                raise error.under(f".{name}") from None
        return kind(**given)

    return decode


def _is_mapping(value: Any) -> TypeGuard[Mapping[Any, Any]]:
    return isinstance(value, Mapping)


def _is_sequence(value: Any) -> TypeGuard[list[Any] | tuple[Any, ...]]:
    return isinstance(value, (list, tuple))


def _is_object(value: Any) -> TypeGuard[dict[str, Any]]:
    return isinstance(value, dict)


def _is_list(value: Any) -> TypeGuard[list[Any]]:
    return isinstance(value, list)


def _shown(value: Any) -> str:
    """Return an invalid value for an error message: short, and only the type of lists and objects."""
    if isinstance(value, (dict, list)):
        return "an object" if isinstance(value, dict) else "a list"
    if value is None or isinstance(value, bool):
        return str(value).lower().replace("none", "null")
    text = f"'{value}'" if isinstance(value, str) else repr(value)
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}…"
