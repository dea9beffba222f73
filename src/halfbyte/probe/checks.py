"""Checks of answers. Each returns the faults of one answer, with the wrong part marked."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Sequence
from typing import Any, cast

from halfbyte.machine.extras import install_extra
from halfbyte.probe.answers import Answer
from halfbyte.probe.judging import defects, first_difference, whole
from halfbyte.probe.probe import Excerpt, Setting

_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")
_SMALLEST_TOLERANCE = 1e-9


def ended(answer: Answer) -> list[Excerpt]:
    """Return a fault if the token limit cut the answer."""
    if answer.finish_reason == "length":
        text = answer.text or answer.reasoning or ""
        return [Excerpt(text, "does not end: finish_reason is length", len(text), len(text), answer.id)]
    return []


def healthy(answer: Answer, kind: Any = "any") -> list[Excerpt]:
    """Return the defects of an answer, and a fault if it is cut or empty."""
    return [*defects(answer, kind), *ended(answer)] or ([] if answer.text else [whole(answer, "no content")])


def last_number(answer: Answer, expected: float) -> list[Excerpt]:
    """Check that the last number of the answer is the expected one."""
    numbers = list(_NUMBER.finditer(answer.text))
    if not numbers:
        return [whole(answer, f"no number; expected {expected:g}")]
    value = float(numbers[-1].group().replace(",", ""))
    if abs(value - expected) <= _SMALLEST_TOLERANCE * max(1.0, abs(expected)):
        return []
    return [Excerpt(answer.text, f"{value:g} instead of {expected:g}", *numbers[-1].span(), answer.id)]


def same_text(answer: Answer, expected: str) -> list[Excerpt]:
    """Check that the answer is this text, except for surrounding whitespace."""
    shown = first_difference(expected, _unfenced(answer.text), answer.id)
    return [shown] if shown else []


def _unfenced(text: str) -> str:
    """Remove code fences around the whole text, which are not copying errors."""
    stripped = text.strip()
    return code_of(stripped).strip() if stripped.startswith("```") else stripped


def has_all(answer: Answer, terms: Sequence[str]) -> list[Excerpt]:
    """Check that every term occurs in the answer verbatim."""
    return [whole(answer, f"{term!r} is missing") for term in terms if term not in answer.text]


def json_of(answer: Answer) -> tuple[Any, list[Excerpt]]:
    """Return the JSON value of an answer, or a fault if it is not valid JSON."""
    text = _unfenced(answer.text)
    try:
        return json.loads(text), []
    except ValueError as error:
        at = getattr(error, "pos", 0)
        return None, [Excerpt(text, f"not JSON: {getattr(error, 'msg', error)}", at, min(at + 1, len(text)), answer.id)]


def same_json(answer: Answer, expected: Any) -> list[Excerpt]:
    """Check that the answer is JSON with this value; key order and spacing do not matter."""
    value, wrong = json_of(answer)
    if wrong or value == expected:
        return wrong
    return [_difference(value, expected, answer)]


def _difference(value: Any, expected: Any, answer: Answer, path: str = "") -> Excerpt:
    """Return the first value that differs, marked in the answer."""
    if isinstance(value, dict) and isinstance(expected, dict):
        got, right = cast("dict[str, Any]", value), cast("dict[str, Any]", expected)
        for key in right:
            if key not in got:
                return whole(answer, f"{path}{key} is missing")
            if got[key] != right[key]:
                return _difference(got[key], right[key], answer, f"{path}{key}.")
        return whole(answer, f"unexpected {', '.join(got.keys() - right.keys())}")
    if isinstance(value, list) and isinstance(expected, list):
        ours, theirs = cast("list[Any]", value), cast("list[Any]", expected)
        for number, (a, b) in enumerate(zip(ours, theirs, strict=False)):
            if a != b:
                return _difference(a, b, answer, f"{path}{number}.")
        return whole(answer, f"{path.rstrip('.') or 'the list'} has {len(ours)} entries instead of {len(theirs)}")
    text = json.dumps(value, ensure_ascii=False)
    at = answer.text.find(text)
    place = (at, at + len(text)) if at >= 0 else (0, len(answer.text))
    right = json.dumps(expected, ensure_ascii=False)
    return Excerpt(answer.text, f"{path.rstrip('.') or 'the value'} is {text} instead of {right}", *place, answer.id)


def ascii_only(answer: Answer) -> list[Excerpt]:
    """Check that all characters are ASCII."""
    at = next((at for at, character in enumerate(answer.text) if not character.isascii()), None)
    if at is None:
        return []
    return [Excerpt(answer.text, f"U+{ord(answer.text[at]):04X} is not ASCII", at, at + 1, answer.id)]


def python(answer: Answer, function: str | None = None) -> list[Excerpt]:
    """Check that the answer is valid Python and defines the expected function or class."""
    source = code_of(answer.text)
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError) as error:
        at = _offset(source, getattr(error, "lineno", 1) or 1, getattr(error, "offset", 1) or 1)
        return [Excerpt(source, f"not Python: {error}", at, min(at + 1, len(source)), answer.id)]
    names = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    if function and function not in names:
        return [Excerpt(source, f"{function} is not defined", 0, len(source), answer.id)]
    return []


def _offset(text: str, line: int, column: int) -> int:
    lines = text.splitlines(keepends=True)
    return min(len(text), sum(map(len, lines[: line - 1])) + column - 1)


# Extract model-written code from answers, and check for a sandbox to run it.

_FENCED = re.compile(r"```[\w+-]*[ \t]*\n(.*?)(?:```|\Z)", re.DOTALL)
NEED_SANDBOX = frozenset({"coding-canary", "unicode-chart"})  # probes


def code_of(text: str) -> str:
    """Return the fenced code of an answer, or all of it without fences."""
    blocks = _FENCED.findall(text)
    return "\n\n".join(blocks) if blocks else text


def lacks_sandbox(setting: Setting) -> str | None:
    """Return why code cannot be run here, or None."""
    tier = setting.sandbox
    if tier is None or tier.engine is None:
        reason = f" ({tier.reason})" if tier else ""
        return f"no sandbox for model-written code: install bubblewrap, or {install_extra('sandbox')}{reason}"
    return None
