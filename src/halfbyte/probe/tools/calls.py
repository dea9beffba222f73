"""Checks of tool calls: declared functions, valid JSON arguments, schemas, ids and leaked markup."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, cast

import jsonschema
from referencing import Registry

from halfbyte.probe.answers import Answer
from halfbyte.probe.kinds import Shown
from halfbyte.probe.tools.cases import Case

MARKUP = re.compile(r"<\|tool_\w*|<\|im_\w*|</?tool_calls?>|tool_calls?_section|functions\.[\w-]+:\d+")
_EMPTY_REGISTRY: Any = cast("Any", Registry)()  # so that a `$ref` in a request is not fetched from the network


def function_of(call: dict[str, Any]) -> tuple[str, str]:
    """Return the name of a call and its arguments as text."""
    function = cast("dict[str, Any]", call.get("function") or {})
    arguments = function.get("arguments")
    return str(function.get("name")), arguments if isinstance(arguments, str) else json.dumps(arguments)


def values_of(call: dict[str, Any]) -> tuple[str, Any]:
    """Return the name of a call and its parsed arguments; invalid JSON stays text."""
    name, text = function_of(call)
    try:
        return name, json.loads(text)
    except ValueError:
        return name, text


def invalid(call: dict[str, Any], case: Case, answer: Answer) -> list[Shown]:
    """Return the faults of a call; none if its schema is itself invalid."""
    name, text = function_of(call)
    declared: dict[str, Any] = {tool["function"]["name"]: tool["function"] for tool in case.tools if "function" in tool}
    if name not in declared:
        return [Shown(name, f"{name} is not declared", 0, len(name), answer.id)]
    try:
        arguments = json.loads(text)
    except ValueError as error:
        at = getattr(error, "pos", 0)
        return [Shown(text, f"arguments of {name} are not valid JSON: {error}", at, at + 1, answer.id)]
    wrong = violation(arguments, declared[name].get("parameters") or {})
    return [Shown(text, f"arguments of {name} violate the schema: {wrong}", 0, len(text), answer.id)] if wrong else []


def violation(value: Any, schema: Any) -> str | None:
    """Return how a value violates a schema; None if it is valid, or if the schema is invalid."""
    library: Any = jsonschema
    kind: Any = library.validators.validator_for(schema, default=library.Draft202012Validator)
    try:
        kind.check_schema(schema)
        errors: list[Any] = list(kind(schema, registry=_EMPTY_REGISTRY).iter_errors(value))
    except Exception:  # an invalid or remote schema is a fault of the request, not of the model
        return None
    error = library.exceptions.best_match(errors)
    if error is None:
        return None
    path = "/".join(map(str, error.absolute_path))
    return f"{path}: {error.message}" if path else str(error.message)


def leaks(answer: Answer) -> list[Shown]:
    """Return tool-call markup in the content or the reasoning."""
    return [
        Shown(text, f"tool-call markup in the {name}", match.start(), match.end(), answer.id)
        for name, text in (("content", answer.text), ("reasoning", answer.reasoning or ""))
        for match in [MARKUP.search(text)]
        if match
    ]


def wrong_ids(calls: Sequence[dict[str, Any]], form: str | None, answer: Answer) -> list[Shown]:
    """Return ids that are missing, duplicate, malformed or not consecutive."""
    faults: list[Shown] = []
    ids = [str(call.get("id") or "") for call in calls]
    first: int | None = None
    for place, (call, name) in enumerate(zip(calls, ids, strict=True)):
        if not name or ids.count(name) > 1:
            faults.append(Shown(name, "duplicate id" if name else "no id", 0, len(name), answer.id))
        if form is None:
            continue
        function, _ = function_of(call)
        pattern = re.escape(form).replace(r"\{name\}", re.escape(function)).replace(r"\{index\}", r"(\d+)")
        match = re.fullmatch(pattern, name)
        if match is None:
            expected = form.replace("{name}", function).replace("{index}", str(place))
            faults.append(Shown(name, f"id does not match {expected}", 0, len(name), answer.id))
            continue
        first = int(match[1]) - place if first is None else first
        if int(match[1]) != first + place:
            faults.append(Shown(name, f"number {match[1]} instead of {first + place}", 0, len(name), answer.id))
    return faults
