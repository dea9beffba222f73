"""Hypothesis strategies that damage valid files."""

import json
from typing import Any

from hypothesis import strategies as st

ODD_NUMBERS = [0, -1, 1, 2**31, 2**63, 2**64, -(2**63), 10**400, 0.5, 1e308, 5e-324, float("nan"), float("inf"), -0.0]
ODD_TEXTS = ["", "x", "x" * 3000, "../x", "/etc/passwd", "\0", "\x1b[2J", "\ud800", "\n", "1e9", "true", "null", "NaN"]
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.sampled_from(ODD_NUMBERS),
    st.integers(),
    st.floats(),
    st.sampled_from(ODD_TEXTS),
    st.text(max_size=8),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=4), inner, max_size=3)),
    max_leaves=6,
)


@st.composite
def damaged_value(draw: st.DrawFn, valid: Any) -> Any:
    """Return a value with one to three changes, removals or duplications."""
    found = json.loads(json.dumps(valid))
    for _ in range(draw(st.integers(1, 3))):
        found = _damage(draw, found)
    return found


def _damage(draw: st.DrawFn, value: Any) -> Any:
    if not isinstance(value, (dict, list)) or not value or not draw(st.integers(0, 5)):
        return draw(VALUES)
    keys: list[Any] = list(value) if isinstance(value, dict) else list(range(len(value)))
    key = draw(st.sampled_from(keys))
    what = draw(st.sampled_from(["into", "into", "into", "remove", "add"]))
    if what == "remove":
        del value[key]
    elif what == "add" and isinstance(value, dict):
        value[draw(st.one_of(st.sampled_from(ODD_TEXTS), st.sampled_from([str(one) for one in keys])))] = draw(VALUES)
    elif what == "add":
        value.insert(key, draw(VALUES))
    else:
        value[key] = _damage(draw, value[key])
    return value


@st.composite
def damaged_bytes(draw: st.DrawFn, valid: bytes) -> bytes:
    """Return bytes with a section cut out, duplicated or replaced."""
    begin = draw(st.integers(0, len(valid)))
    end = min(begin + draw(st.integers(0, 40)), len(valid))
    piece = draw(
        st.one_of(st.binary(max_size=12), st.sampled_from([valid[begin:end] * 2, b"", b"\0" * 8, b"[" * 2000]))
    )
    return valid[:begin] + piece + valid[end:]


def damaged_json(valid: Any) -> st.SearchStrategy[bytes]:
    """Return the bytes of a JSON file."""
    raw = json.dumps(valid, indent=1).encode()
    return st.one_of(damaged_value(valid).map(lambda found: json.dumps(found).encode()), damaged_bytes(raw))


def damaged_lines(valid: list[Any]) -> st.SearchStrategy[bytes]:
    """Return the bytes of a file of JSON lines."""
    lines = st.tuples(*[st.one_of(st.just(one), damaged_value(one)) for one in valid])
    whole = lines.map(lambda found: b"".join(json.dumps(one).encode() + b"\n" for one in found))
    raw = b"".join(json.dumps(one).encode() + b"\n" for one in valid)
    return st.one_of(whole, damaged_bytes(raw))
