"""Turn validation errors into one message with location and fix, and apply `--set` overrides."""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import NoneType
from typing import Any, cast, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from halfbyte.errors import RecipeError
from halfbyte.recipe.strict_yaml import OVERRIDE, Document, KeyPath, dotted, parse_value
from halfbyte.ui.suggest import nearest

_SHOWN_CHARS = 60
CONTRADICTION = "contradiction"  # type of the pydantic errors that carry our own Problems


@dataclass(frozen=True, slots=True)
class Problem:
    """One error in a recipe; the key path is relative to the block that reported it."""

    what: str
    path: KeyPath
    fix: str


# Expected type, in words, for each pydantic type error.
_KINDS: Mapping[str, str] = {
    "string_type": "text",
    "int_type": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "tuple_type": "a list",
    "model_type": "a block of keys",
    "dict_type": "a block of keys",
}


def explain(error: ValidationError, document: Document, model: type[BaseModel]) -> RecipeError:
    """Return an error for the first problem in file order, with the count of the others."""
    problems = [problem for detail in _causes(error.errors(), model) for problem in _problems(detail, model)]
    first = min(problems, key=lambda problem: _rank(document.line(problem.path)))
    others = len(problems) - 1
    more = f" (and {others} more problem{'s' if others > 1 else ''})" if others else ""
    return RecipeError(first.what + more, where=document.where(first.path), fix=first.fix)


def apply_overrides(document: Document, overrides: Sequence[str], model: type[BaseModel]) -> Document:
    """Return the document with each `path.to.key=value` applied in order; raise RecipeError for unknown paths."""
    data, lines = copy.deepcopy(document.data), dict(document.lines)
    for override in overrides:
        name, equals, text = override.partition("=")
        where = f"--set {override}"
        if not equals or not name.strip():
            raise RecipeError(
                f"'{override}' is not a key=value pair", where=where, fix="write key=value, as in quantize.scales=mse"
            )
        path = _put(data, name.strip().split("."), parse_value(text, where), where, model)
        lines = {known: line for known, line in lines.items() if known[: len(path)] != path}
        lines[path] = OVERRIDE
    return Document(document.file, data, lines)


def suggest(name: str, known: Sequence[str], otherwise: str) -> str:
    """Return `did you mean ...?` if a known name is close, else `otherwise`."""
    near = nearest(name, known)
    return f"did you mean '{near}'?" if near else otherwise


def either(values: Sequence[str]) -> str:
    """Join values as `a, b or c`."""
    return values[0] if len(values) == 1 else f"{', '.join(values[:-1])} or {values[-1]}"


def _rank(line: int | None) -> float:
    return float("inf") if line is None else line


def _problems(detail: ErrorDetails, model: type[BaseModel]) -> list[Problem]:
    """Translate one pydantic error."""
    path, kind, value = detail["loc"], detail["type"], cast("object", detail["input"])
    context = detail.get("ctx", {})
    if kind == CONTRADICTION:
        inner = cast("Sequence[Problem]", context["problems"])
        return [Problem(problem.what, path + problem.path, problem.fix) for problem in inner]
    if path[-1] == "[key]":  # a key of a mapping whose keys are an enumeration, such as roles
        return [_unknown_key(path[:-1], model)]
    if kind == "extra_forbidden":
        return [_unknown_key(path, model)]
    key = path[-1] if isinstance(path[-1], str) else f"{path[-2]}.{path[-1]}"
    if kind == "missing":
        return [Problem(f"missing key '{key}'", path, f"add '{key}': {_description(path, model)}")]
    if kind == "literal_error":
        values = re.findall(r"'([^']*)'", str(context["expected"]))
        what = f"{_show(value)} is not a valid value for '{key}'"
        return [Problem(what, path, suggest(str(value), values, f"use {either(values)}"))]
    if kind in _KINDS:
        what = f"'{key}' must be {_KINDS[kind]}, not {_show(value)}"
        return [Problem(what, path, _retype(kind, value, path, model))]
    # The remaining errors are bounds and patterns, which the key's description states in words.
    return [Problem(f"{_show(value)} is not valid for '{key}'", path, f"write {_description(path, model)}")]


def _causes(details: Sequence[ErrorDetails], model: type[BaseModel]) -> list[ErrorDetails]:
    """Drop errors that only follow from an unknown key, such as the intended key being missing."""
    unknown = [detail["loc"] for detail in details if detail["type"] == "extra_forbidden"]
    unknown += [detail["loc"][:-1] for detail in details if detail["loc"][-1:] == ("[key]",)]
    intended = {_intended(path, model) for path in unknown}
    return [
        detail
        for detail in details
        if not (detail["type"] == "missing" and detail["loc"] in intended)
        and not (detail["type"] == "literal_error" and detail["loc"] in unknown)
    ]


def _intended(path: KeyPath, model: type[BaseModel]) -> KeyPath:
    """Return the path of the known key closest to an unknown one, or the path unchanged if none is close."""
    near = nearest(str(path[-1]), block_keys(_annotation(path[:-1], model)) or {})
    return (*path[:-1], near) if near else path


def _unknown_key(path: KeyPath, model: type[BaseModel]) -> Problem:
    name, parent = str(path[-1]), path[:-1]
    known = list(block_keys(_annotation(parent, model)) or {})
    elsewhere = [block for block in _blocks_with(name, model, ()) if block != parent]
    otherwise = f"the keys here are {', '.join(known)}"
    if elsewhere:
        otherwise = f"'{name}' belongs to '{dotted(elsewhere[0])}'" if elsewhere[0] else f"'{name}' is a top-level key"
    return Problem(f"unknown key '{name}'", path, suggest(name, known, otherwise))


def _retype(kind: str, value: object, path: KeyPath, model: type[BaseModel]) -> str:
    """Return the fix for a value of the wrong type, including common YAML pitfalls."""
    if kind == "string_type" and isinstance(value, (int, float)):
        return "put it in quotes"
    if kind == "int_type" and isinstance(value, float) and value.is_integer():
        return f"write {int(value)}"
    if kind == "bool_type" and isinstance(value, str):
        return "write true or false: yes, no, on and off are read as text"
    return f"write {_description(path, model)}"


def _show(value: object) -> str:
    if value is None:
        return "an empty value"
    if isinstance(value, Mapping):
        return "a block of keys"
    if isinstance(value, (list, tuple)):
        return "a list"
    if isinstance(value, bool):
        return str(value).lower()
    shown = str(value)
    shown = shown if len(shown) <= _SHOWN_CHARS else shown[:_SHOWN_CHARS] + "..."
    return f"'{shown}'" if isinstance(value, str) else shown


def block_keys(annotation: object) -> Mapping[str, object] | None:
    """Return the keys allowed in a block of this type, with their types; None if it is not a block with fixed keys."""
    annotation = _without_none(annotation)
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return {name: field.annotation for name, field in annotation.model_fields.items()}
    if get_origin(annotation) is Mapping:
        key, value = get_args(annotation)
        return dict.fromkeys(get_args(key), value) or None  # some mappings accept any key
    return None


def list_item(annotation: object) -> object:
    """Return the item type of a list type; None if the type is not a list."""
    annotation = _without_none(annotation)
    return get_args(annotation)[0] if get_origin(annotation) is tuple else None


def _without_none(annotation: object) -> object:
    kinds = [kind for kind in get_args(annotation) if kind is not NoneType]
    return kinds[0] if NoneType in get_args(annotation) else annotation


def _annotation(path: KeyPath, model: type[BaseModel]) -> object:
    annotation: object = model
    for part in path:
        annotation = list_item(annotation) if isinstance(part, int) else (block_keys(annotation) or {}).get(part)
    return annotation


def _description(path: KeyPath, model: type[BaseModel]) -> str:
    """Return the key's description from the schema."""
    parent = _without_none(_annotation(path[:-1], model))
    if isinstance(parent, type) and issubclass(parent, BaseModel):
        return str(parent.model_fields[str(path[-1])].description)
    return f"an item of '{path[-2]}'"


def _blocks_with(name: str, annotation: object, path: KeyPath) -> list[KeyPath]:
    """Return the paths of the blocks that have a key of this name."""
    keys = block_keys(annotation)
    if keys is None:
        item = list_item(annotation)
        return [] if item is None else _blocks_with(name, item, path)
    blocks = [path] if name in keys else []
    return blocks + [block for key, inner in keys.items() for block in _blocks_with(name, inner, (*path, key))]


def _put(data: dict[str, Any], parts: list[str], value: Any, where: str, model: type[BaseModel]) -> KeyPath:
    """Set one value in nested data, creating missing blocks; return its path."""
    path: KeyPath = ()
    annotation: object = model
    holder: object = data
    for number, part in enumerate(parts):
        last = number == len(parts) - 1
        item = list_item(annotation)
        if item is not None:
            items = cast("list[object]", holder) if isinstance(holder, list) else []
            if not part.isdecimal() or int(part) >= len(items):
                what, fix = f"no entry '{part}' in '{dotted(path)}'", f"it has {len(items)} entries, counted from 0"
                raise RecipeError(what, where=where, fix=fix)
            index, annotation, path = int(part), item, (*path, int(part))
            items[index] = value if last else items[index]
            holder = items[index]
            continue
        annotation = _known(annotation, path, part, where)
        if not isinstance(holder, dict):
            name = dotted(path)
            raise RecipeError(f"'{name}' is not a block of keys", where=where, fix=f"set '{name}' as a whole")
        block, path = cast("dict[str, object]", holder), (*path, part)
        if last:
            block[part] = value
        elif block.get(part) is None:
            block[part] = {}
        holder = block[part]
    return path


def _known(annotation: object, path: KeyPath, part: str, where: str) -> object:
    """Return the type of the key `part` under `path`; raise RecipeError listing the valid keys if it is unknown."""
    keys = block_keys(annotation) or {}
    if part not in keys:
        known = [dotted((*path, key)) for key in keys]
        otherwise = f"the keys are {', '.join(known)}" if known else f"'{dotted(path)}' has no subkeys"
        fix = suggest(dotted((*path, part)), known, otherwise)
        raise RecipeError(f"unknown key '{part}'", where=where, fix=fix)
    return keys[part]
