"""Strict YAML parser for recipes that records the line of every value.

PyYAML silently keeps the last of two duplicate keys, reads `no` as false and `1_0:30` as a number, and resolves
anchors. This parser rejects duplicate keys, anchors, aliases and tags, and reads such scalars as text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NoReturn, cast

import yaml

from halfbyte.errors import RecipeError

KeyPath = tuple[str | int, ...]

MAX_DEPTH = 8  # recipes need five; with thousands of brackets PyYAML takes quadratic time and overflows the stack
OVERRIDE = 0  # the "line" of a value set by --set

_TAG = "tag:yaml.org,2002:"
_PLAIN = {
    "null": re.compile(r"(?:~|null|Null|NULL|)\Z"),
    "bool": re.compile(r"(?:true|True|TRUE|false|False|FALSE)\Z"),
    "int": re.compile(r"[-+]?(?:0|[1-9][0-9]*)\Z"),
    # Accept an exponent without a dot: PyYAML's own rule reads 1e3 as text.
    "float": re.compile(r"[-+]?(?:(?:0|[1-9][0-9]*)?\.[0-9]+(?:[eE][-+]?[0-9]+)?|(?:0|[1-9][0-9]*)[eE][-+]?[0-9]+)\Z"),
}


@dataclass(frozen=True, slots=True)
class Document:
    """The values of one recipe file, and the line where each of them is written."""

    file: str
    data: dict[str, Any]
    lines: dict[KeyPath, int]

    def line(self, path: KeyPath) -> int | None:
        """Return the line of the value at `path` or of its nearest enclosing block; None for the whole file."""
        for end in range(len(path), 0, -1):
            if path[:end] in self.lines:
                return self.lines[path[:end]]
        return None

    def where(self, path: KeyPath) -> str:
        """Return `file:line: dotted.path` for an error, or `--set dotted.path` for an override."""
        line = self.line(path)
        if line == OVERRIDE:
            return f"--set {dotted(path)}"
        return place(self.file, line, path)


def dotted(path: KeyPath) -> str:
    """Return a key path in dotted form, such as calibrate.datasets.0.share."""
    return ".".join(str(part) for part in path)


def place(file: str, line: int | None, path: KeyPath = ()) -> str:
    """Return `file:line: dotted.path`, omitting unknown parts."""
    location = file if line is None else f"{file}:{line}"
    return f"{location}: {dotted(path)}" if path else location


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader with YAML 1.2 scalar types instead of YAML 1.1."""

    yaml_implicit_resolvers = {None: [(_TAG + name, pattern) for name, pattern in _PLAIN.items()]}  # noqa: RUF012


# PyYAML's stubs leave these two without types.
_events = cast("Callable[..., Iterator[yaml.Event]]", yaml.parse)  # pyright: ignore[reportUnknownMemberType]
_compose = cast("Callable[..., yaml.Node | None]", yaml.compose)  # pyright: ignore[reportUnknownMemberType]


def parse_yaml(text: str, file: str) -> Document:
    """Parse a recipe; raise RecipeError with the offending line."""
    lines: dict[KeyPath, int] = {}
    data = _parse(text, file, lines)
    if not isinstance(data, dict):
        content = "an empty file" if data is None else "a single value or a list"
        raise RecipeError(
            f"expected a block of keys, found {content}", where=file, fix="start from 'halfbyte recipes show NAME'"
        )
    return Document(file, cast("dict[str, Any]", data), lines)


def parse_value(text: str, where: str) -> Any:
    """Parse the value of an override by the same rules as a file."""
    try:
        return _parse(text, where, {})
    except RecipeError as error:  # overrides have no line number
        raise RecipeError(error.what, where=where, fix=error.fix) from None


def _parse(text: str, file: str, lines: dict[KeyPath, int]) -> Any:
    try:
        depth = 0
        for event in _events(text, Loader=_Loader):
            _refuse_indirection(event, file)
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > MAX_DEPTH:
                where = place(file, event.start_mark.line + 1)
                raise RecipeError(f"blocks nested more than {MAX_DEPTH} deep", where=where, fix="check the brackets")
        node = _compose(text, Loader=_Loader)
        return None if node is None else _value(node, (), file, lines)
    except yaml.MarkedYAMLError as error:
        _refuse_syntax(error, file)
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise RecipeError(
            f"invalid character U+{ord(text[error.position]):04X} in a recipe",
            where=place(file, line),
            fix="remove it: a recipe is plain text",
        ) from None


def _refuse_indirection(event: yaml.Event, file: str) -> None:
    """Reject anchors, aliases and tags."""
    where = place(file, event.start_mark.line + 1)
    anchor: str | None = getattr(event, "anchor", None)
    if anchor is not None:
        sign = "alias '*" if isinstance(event, yaml.AliasEvent) else "anchor '&"
        fix = "write the value out: recipes do not support anchors or aliases"
        raise RecipeError(f"{sign}{anchor}' in a recipe", where=where, fix=fix)
    tag: str | None = getattr(event, "tag", None)
    if tag is not None:
        raise RecipeError(f"tag '{tag.replace(_TAG, '!!')}' in a recipe", where=where, fix="remove the tag")


def _refuse_syntax(error: yaml.MarkedYAMLError, file: str) -> NoReturn:
    mark = error.problem_mark or error.context_mark
    message = "; ".join(part for part in (error.context, error.problem) if part)
    raise RecipeError(
        f"invalid YAML: {message}",
        where=place(file, mark.line + 1 if mark else None),
        fix="check indentation (spaces, not tabs), colons and quotes on that line and the one before",
    ) from None


def _value(node: yaml.Node, path: KeyPath, file: str, lines: dict[KeyPath, int]) -> Any:
    """Return a node's plain Python value and record its line and those of its children in `lines`."""
    if isinstance(node, yaml.MappingNode):
        return _mapping(node, path, file, lines)
    line = node.start_mark.line + 1
    if isinstance(node, yaml.SequenceNode):
        items = cast("list[yaml.Node]", node.value)
        for index, item in enumerate(items):
            lines[(*path, index)] = item.start_mark.line + 1
        return [_value(item, (*path, index), file, lines) for index, item in enumerate(items)]
    text = cast("str", node.value)
    kind = node.tag.removeprefix(_TAG)
    if kind == "null":
        return None
    if kind == "bool":
        return text.lower() == "true"
    if kind == "float":
        return float(text)
    if kind != "int":
        return text
    try:
        return int(text)
    except ValueError:  # CPython rejects more than 4,300 digits
        raise RecipeError(
            f"number with {len(text)} digits", where=place(file, line, path), fix="write a shorter number"
        ) from None


def _mapping(node: yaml.MappingNode, path: KeyPath, file: str, lines: dict[KeyPath, int]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for key_node, value_node in cast("list[tuple[yaml.Node, yaml.Node]]", node.value):
        line = key_node.start_mark.line + 1
        if not isinstance(key_node, yaml.ScalarNode) or key_node.tag != _TAG + "str":
            raise RecipeError("key is not text", where=place(file, line, path), fix="write 'key: value'")
        key = cast("str", key_node.value)
        here = (*path, key)
        if key == "<<":
            raise RecipeError(
                "merge key '<<' in a recipe",
                where=place(file, line, path),
                fix="write the keys out: recipes do not support merge keys",
            )
        if key in values:
            raise RecipeError(
                f"duplicate key '{key}'",
                where=place(file, line, here),
                fix=f"remove one: the first is on line {lines[here]}",
            )
        lines[here] = line
        values[key] = _value(value_node, here, file, lines)
    return values
