"""What an answer must be: each check returns what is wrong with one answer, with the place marked."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Sequence
from typing import Any, cast

from halfbyte.validate.probe.answers import Answer
from halfbyte.validate.probe.code import code_of
from halfbyte.validate.probe.kinds import Shown
from halfbyte.validate.probe.marks import defects, first_difference, whole

_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")
_SMALLEST_TOLERANCE = 1e-9


def ended(answer: Answer) -> list[Shown]:
    """Short answers end by themselves."""
    if answer.finish_reason == "length":
        text = answer.text or answer.reasoning or ""
        return [Shown(text, "it does not end: finish_reason is length", len(text), len(text), answer.id)]
    return []


def sound(answer: Answer, kind: Any = "any") -> list[Shown]:
    """Return the defects that no answer may have, and an end that is missing."""
    return [*defects(answer, kind), *ended(answer)] or ([] if answer.text else [whole(answer, "no content")])


def last_number(answer: Answer, wanted: float) -> list[Shown]:
    """The last number of the answer is the wanted one."""
    found = list(_NUMBER.finditer(answer.text))
    if not found:
        return [whole(answer, f"no number; {wanted:g} is right")]
    value = float(found[-1].group().replace(",", ""))
    if abs(value - wanted) <= _SMALLEST_TOLERANCE * max(1.0, abs(wanted)):
        return []
    return [Shown(answer.text, f"{value:g} where {wanted:g} is right", *found[-1].span(), answer.id)]


def same_text(answer: Answer, wanted: str) -> list[Shown]:
    """The answer is this text, white space around it aside."""
    shown = first_difference(wanted, _unfenced(answer.text), answer.id)
    return [shown] if shown else []


def _unfenced(text: str) -> str:
    """Leave out fences around the whole, which say nothing about copying."""
    stripped = text.strip()
    return code_of(stripped).strip() if stripped.startswith("```") else stripped


def has_all(answer: Answer, terms: Sequence[str]) -> list[Shown]:
    """Every term stands in the answer, letter by letter."""
    return [whole(answer, f"{term!r} is not in it") for term in terms if term not in answer.text]


def json_of(answer: Answer) -> tuple[Any, list[Shown]]:
    """Return the JSON that an answer is, or what keeps it from being JSON."""
    text = _unfenced(answer.text)
    try:
        return json.loads(text), []
    except ValueError as error:
        at = getattr(error, "pos", 0)
        return None, [Shown(text, f"not JSON: {getattr(error, 'msg', error)}", at, min(at + 1, len(text)), answer.id)]


def same_json(answer: Answer, wanted: Any) -> list[Shown]:
    """The answer is JSON with this value, whatever its order and spacing."""
    value, wrong = json_of(answer)
    if wrong or value == wanted:
        return wrong
    return [_difference(value, wanted, answer)]


def _difference(value: Any, wanted: Any, answer: Answer, path: str = "") -> Shown:
    """Show the first value that differs, and where the answer has it."""
    if isinstance(value, dict) and isinstance(wanted, dict):
        got, right = cast("dict[str, Any]", value), cast("dict[str, Any]", wanted)
        for key in right:
            if key not in got:
                return whole(answer, f"{path}{key} is missing")
            if got[key] != right[key]:
                return _difference(got[key], right[key], answer, f"{path}{key}.")
        return whole(answer, f"{', '.join(got.keys() - right.keys())} is too much")
    if isinstance(value, list) and isinstance(wanted, list):
        ours, theirs = cast("list[Any]", value), cast("list[Any]", wanted)
        for number, (a, b) in enumerate(zip(ours, theirs, strict=False)):
            if a != b:
                return _difference(a, b, answer, f"{path}{number}.")
        return whole(answer, f"{path.rstrip('.') or 'the list'} has {len(ours)} entries where {len(theirs)} belong")
    text = json.dumps(value, ensure_ascii=False)
    at = answer.text.find(text)
    place = (at, at + len(text)) if at >= 0 else (0, len(answer.text))
    right = json.dumps(wanted, ensure_ascii=False)
    return Shown(answer.text, f"{path.rstrip('.') or 'it'} is {text} where {right} belongs", *place, answer.id)


def ascii_only(answer: Answer) -> list[Shown]:
    """No character is beyond ASCII."""
    at = next((at for at, one in enumerate(answer.text) if not one.isascii()), None)
    if at is None:
        return []
    return [Shown(answer.text, f"U+{ord(answer.text[at]):04X} where only ASCII belongs", at, at + 1, answer.id)]


def python(answer: Answer, function: str | None = None) -> list[Shown]:
    """The answer is Python that can be parsed, and defines what was asked for."""
    source = code_of(answer.text)
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError) as error:
        at = _offset(source, getattr(error, "lineno", 1) or 1, getattr(error, "offset", 1) or 1)
        return [Shown(source, f"not Python: {error}", at, min(at + 1, len(source)), answer.id)]
    names = {one.name for one in ast.walk(tree) if isinstance(one, ast.FunctionDef | ast.ClassDef)}
    if function and function not in names:
        return [Shown(source, f"{function} is not defined", 0, len(source), answer.id)]
    return []


def _offset(text: str, line: int, column: int) -> int:
    lines = text.splitlines(keepends=True)
    return min(len(text), sum(map(len, lines[: line - 1])) + column - 1)
