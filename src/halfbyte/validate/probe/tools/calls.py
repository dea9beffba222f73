"""One tool call: is the function declared, are the arguments JSON, do they fit the schema; and who leaks its markup."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, cast

import jsonschema
from referencing import Registry

from halfbyte.validate.probe.answers import Answer
from halfbyte.validate.probe.kinds import Shown
from halfbyte.validate.probe.tools.cases import Case

MARKUP = re.compile(r"<\|tool_\w*|<\|im_\w*|</?tool_calls?>|tool_calls?_section|functions\.[\w-]+:\d+")
_NOWHERE: Any = cast("Any", Registry)()  # without it a `$ref` of a request would be fetched from the net


def function_of(call: dict[str, Any]) -> tuple[str, str]:
    """Return a call's name and its arguments as text."""
    function = cast("dict[str, Any]", call.get("function") or {})
    arguments = function.get("arguments")
    return str(function.get("name")), arguments if isinstance(arguments, str) else json.dumps(arguments)


def values_of(call: dict[str, Any]) -> tuple[str, Any]:
    """Return a call's name and its arguments as values; text that is not JSON stays text."""
    name, text = function_of(call)
    try:
        return name, json.loads(text)
    except ValueError:
        return name, text


def invalid(call: dict[str, Any], case: Case, answer: Answer) -> list[Shown]:
    """Return what is wrong with a call; nothing where its schema itself cannot be read."""
    name, text = function_of(call)
    declared: dict[str, Any] = {tool["function"]["name"]: tool["function"] for tool in case.tools if "function" in tool}
    if name not in declared:
        return [Shown(name, f"{name} is not declared", 0, len(name), answer.id)]
    try:
        arguments = json.loads(text)
    except ValueError as error:
        at = getattr(error, "pos", 0)
        return [Shown(text, f"arguments of {name} that are not JSON: {error}", at, at + 1, answer.id)]
    wrong = violation(arguments, declared[name].get("parameters") or {})
    return [Shown(text, f"arguments of {name} that do not fit: {wrong}", 0, len(text), answer.id)] if wrong else []


def violation(value: Any, schema: Any) -> str | None:
    """Return how a value breaks a schema; None where it fits, and where the schema is none."""
    library: Any = jsonschema
    kind: Any = library.validators.validator_for(schema, default=library.Draft202012Validator)
    try:
        kind.check_schema(schema)
        errors: list[Any] = list(kind(schema, registry=_NOWHERE).iter_errors(value))
    except Exception:  # a schema that is wrong, or points elsewhere, is the request's fault, not the model's
        return None
    found = library.exceptions.best_match(errors)
    if found is None:
        return None
    where = "/".join(map(str, found.absolute_path))
    return f"{where}: {found.message}" if where else str(found.message)


def leaks(answer: Answer) -> list[Shown]:
    """Return markup of calls in the text or in the reasoning."""
    return [
        Shown(text, f"markup of a tool call in the {name}", match.start(), match.end(), answer.id)
        for name, text in (("content", answer.text), ("reasoning", answer.reasoning or ""))
        for match in [MARKUP.search(text)]
        if match
    ]


def wrong_ids(calls: Sequence[dict[str, Any]], form: str | None, answer: Answer) -> list[Shown]:
    """Return ids that are missing, double, of another form, or that do not count up."""
    found: list[Shown] = []
    ids = [str(call.get("id") or "") for call in calls]
    first: int | None = None
    for place, (call, name) in enumerate(zip(calls, ids, strict=True)):
        if not name or ids.count(name) > 1:
            found.append(Shown(name, "an id twice" if name else "no id", 0, len(name), answer.id))
        if form is None:
            continue
        function, _ = function_of(call)
        pattern = re.escape(form).replace(r"\{name\}", re.escape(function)).replace(r"\{index\}", r"(\d+)")
        match = re.fullmatch(pattern, name)
        if match is None:
            wanted = form.replace("{name}", function).replace("{index}", str(place))
            found.append(Shown(name, f"an id that is not like {wanted}", 0, len(name), answer.id))
            continue
        first = int(match[1]) - place if first is None else first
        if int(match[1]) != first + place:
            found.append(Shown(name, f"number {match[1]} where {first + place} follows", 0, len(name), answer.id))
    return found
