"""Replacements for any file that a reader expects. Each attack takes the path of an existing file."""

import contextlib
import json
import os
from collections.abc import Callable
from pathlib import Path

DEEP = 100_000
Attack = Callable[[Path], None]


def replaced(raw: bytes) -> Attack:
    """Replace the bytes of the file."""

    def attack(path: Path) -> None:
        path.write_bytes(raw)

    return attack


def fifo(path: Path) -> None:
    """A FIFO without a writer: opening it blocks."""
    path.unlink()
    os.mkfifo(path)


def folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def endless_device(path: Path) -> None:
    """A link to an endless device."""
    path.unlink()
    path.symlink_to("/dev/zero")


def link_in_a_circle(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.name)


def link_to_nothing(path: Path) -> None:
    path.unlink()
    path.symlink_to("gone")


def no_permission(path: Path) -> None:
    path.chmod(0)


def sparse_terabyte(path: Path) -> None:
    """A sparse file of a terabyte."""
    path.write_bytes(b"{")
    with contextlib.suppress(OSError):
        os.truncate(path, 1 << 40)


def sparse_behind_its_end(path: Path) -> None:
    """A sparse terabyte after valid text."""
    with contextlib.suppress(OSError):
        os.truncate(path, 1 << 40)


def cut_off(path: Path) -> None:
    raw = path.read_bytes()
    path.write_bytes(raw[: len(raw) // 2])


def every_value(value: object) -> Attack:
    """Replace every number and string of a JSON file by one value."""

    def attack(path: Path) -> None:
        path.write_text(json.dumps(_with(json.loads(path.read_text()), value)))

    return attack


def _with(found: object, value: object) -> object:
    if isinstance(found, dict):
        return {key: _with(inner, value) for key, inner in found.items()}
    if isinstance(found, list):
        return [_with(inner, value) for inner in found]
    return value


def doubled_keys(path: Path) -> None:
    """Duplicate every key of the outermost object."""
    text = path.read_text().strip()
    path.write_text(f"{text[:-1]},{text[1:]}")


IN_PLACE: dict[str, Attack] = {
    "fifo": fifo,
    "folder": folder,
    "endless_device": endless_device,
    "link_in_a_circle": link_in_a_circle,
    "link_to_nothing": link_to_nothing,
    "sparse_terabyte": sparse_terabyte,
    "sparse_behind_its_end": sparse_behind_its_end,
    "no_permission": no_permission,
}
BYTES: dict[str, Attack] = {
    "empty": replaced(b""),
    "nul_bytes": replaced(b"\0" * 1000),
    "not_utf8": replaced(b'{"a": "\xff\xfe\xfa"}'),
    "utf16": replaced('{"a": 1}'.encode("utf-16")),
    "byte_order_mark": replaced(b'\xef\xbb\xbf{"a": 1}'),
    "half_a_surrogate_pair": replaced(b'{"\\ud800": "\\udfff"}'),
    "deep_lists": replaced(b"[" * DEEP),
    "deep_lists_closed": replaced(b"[" * DEEP + b"]" * DEEP),
    "deep_objects": replaced(b'{"a":' * DEEP + b"1" + b"}" * DEEP),
    "deep_below_the_limit_of_python": replaced(b'{"a":' * 900 + b"1" + b"}" * 900),
    "million_empty_lists": replaced(b"[" + b"[]," * 10_000_000 + b"[]]"),  # 30 MB, 700 MB of lists
    "huge_integer": replaced(b'{"a": ' + b"9" * 1_000_000 + b"}"),
    "a_list": replaced(b"[]"),
    "null": replaced(b"null"),
    "nan": replaced(b"NaN"),
    "a_text": replaced(b'"text"'),
    "no_keys": replaced(b"{}"),
    "million_equal_keys": replaced(b"{" + b'"a":1,' * 1_000_000 + b'"a":1}'),
    "equal_keys_at_the_end": replaced(
        b"{" + b",".join(b'"%d":1' % i for i in range(200_000)) + b',"199999":1}'
    ),  # quadratic for who counts each of them
    "megabyte_name": replaced(b'{"' + b"x" * 1_000_000 + b'": 1}'),
    "controls": replaced(json.dumps({"\x1b]0;owned\x07\n\r": "\x1b[2J\u202e"}, ensure_ascii=False).encode()),
}
# Of a JSON file that was right.
CHANGED: dict[str, Attack] = {
    "cut_off": cut_off,
    "doubled_keys": doubled_keys,
    **{
        f"every_value_{name}": every_value(value)
        for name, value in {
            "nan": float("nan"),
            "infinite": float("inf"),
            "null": None,
            "negative": -1,
            "zero": 0,
            "fraction": 0.5,
            "beyond_64_bits": 2**64,
            "of_4000_digits": 10**4000,
            "text": "x",
            "long_text": "x" * 100_000,
            "controls": "\x1b]0;owned\x07\n✗ all is well\r\u202e",
            "half_a_pair": "\ud800",
            "path": "../../../etc/passwd",
            "list": [],
            "object": {},
            "true": True,
        }.items()
    },
}
FILES: dict[str, Attack] = {**IN_PLACE, **BYTES, **CHANGED}
