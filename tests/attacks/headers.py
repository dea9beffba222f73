"""Attacks on a safetensors file. Each takes the path of a valid one."""

import json
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

Attack = Callable[[Path], None]
HEADER_LIMIT = 100_000_000  # safetensors' own


def edit_header(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Change the header's JSON and keep the tensor bytes."""
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = change(json.loads(data[8 : 8 + length]))
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(raw)) + raw + data[8 + length :])


def one_tensor(**changes: Any) -> Attack:
    """Change the header entry of the first tensor."""

    def attack(path: Path) -> None:
        def change(header: dict[str, Any]) -> dict[str, Any]:
            name = next(name for name in header if name != "__metadata__")
            return {**header, name: {**header[name], **changes}}

        edit_header(path, change)

    return attack


def only(header: Any, data: bytes = b"") -> Attack:
    """Write a file with this header, as JSON or as bytes, and this data."""

    def attack(path: Path) -> None:
        raw = header if isinstance(header, bytes) else json.dumps(header).encode()
        path.write_bytes(struct.pack("<Q", len(raw)) + raw + data)

    return attack


def length(claimed: int) -> Attack:
    """Set another header length."""

    def attack(path: Path) -> None:
        path.write_bytes(struct.pack("<Q", claimed) + path.read_bytes()[8:])

    return attack


def large(piece: bytes, begin: bytes = b'{"a":[', end: bytes = b"[]]}", nbytes: int = HEADER_LIMIT) -> Attack:
    """Write a header of the largest size that safetensors allows, from one repeated piece."""

    def attack(path: Path) -> None:
        count = (nbytes - len(begin) - len(end)) // len(piece)
        with path.open("wb") as file:
            file.write(struct.pack("<Q", len(begin) + count * len(piece) + len(end)) + begin)
            for _ in range(100):
                file.write(piece * (count // 100))
            file.write(piece * (count % 100) + end)

    return attack


def sparse(nbytes: int) -> Attack:
    """Set a header length that a sparse file can satisfy."""

    def attack(path: Path) -> None:
        path.write_bytes(struct.pack("<Q", nbytes))
        os.truncate(path, 8 + nbytes)

    return attack


def renamed(new: str) -> Attack:
    """Give the first tensor another name."""

    def attack(path: Path) -> None:
        def change(header: dict[str, Any]) -> dict[str, Any]:
            name = next(name for name in header if name != "__metadata__")
            return {new if key == name else key: value for key, value in header.items()}

        edit_header(path, change)

    return attack


def all_at_the_same_place(path: Path) -> None:
    """Give every tensor the bytes of the first: a small file that expands to a large one."""
    edit_header(
        path,
        lambda header: {
            f"tensor.{number}": {"dtype": "U8", "shape": [8], "data_offsets": [0, 8]} for number in range(10_000)
        },
    )


def doubled(path: Path) -> None:
    """List every tensor twice."""
    edit_header(path, lambda header: (json.dumps(header)[:-1] + "," + json.dumps(header)[1:]).encode())


def swapped_offsets(path: Path) -> None:
    def change(header: dict[str, Any]) -> dict[str, Any]:
        for name, entry in header.items():
            if name != "__metadata__":
                entry["data_offsets"] = entry["data_offsets"][::-1]
        return header

    edit_header(path, change)


EMPTY_TENSOR = {"dtype": "U8", "shape": [0], "data_offsets": [0, 0]}
HEADERS: dict[str, Attack] = {
    "claims_100_mb": length(100_000_000),
    "claims_2_to_63": length(2**63),
    "claims_2_to_64_less_1": length(2**64 - 1),
    "claims_nothing": length(0),
    "sparse_100_mb": sparse(HEADER_LIMIT),
    "sparse_100_gb": sparse(100_000_000_000),
    "100_mb_of_lists": large(b"[],"),
    "100_mb_of_objects": large(b"{},"),
    "100_mb_of_texts": large(b'"ab",'),
    "100_mb_of_numbers": large(b"1234,"),
    "100_mb_of_equal_names": large(b'"a":0,', b"{", b'"a":0}'),
    "100_mb_of_brackets": large(b"[", b"{", b"}"),
    "100_mb_of_one_shape": large(b"1,", b'{"a":{"dtype":"U8","shape":[', b'1],"data_offsets":[0,0]}}'),
    "100_mb_of_spaces": large(b" ", b"{", b"}"),
    "deep": only(b'{"a":' * 100_000),
    "100_mb_of_large_numbers": only(
        b'{"a":{"dtype":"U8","shape":[' + b",".join([b"9" * 4000] * 4_000) + b'],"data_offsets":[0,0]}}'
    ),
    "shape_overflows_to_the_right_size": one_tensor(shape=[2**32, 2**32]),
    "shape_of_2_to_63": one_tensor(shape=[2**63]),
    "shape_of_4000_digits": one_tensor(shape=[10**4000]),
    "shape_of_thousands_of_ones": one_tensor(shape=[1] * 5000),
    "shape_of_no_numbers": one_tensor(shape=["1", None, [2]]),
    "shape_of_fractions": one_tensor(shape=[1.5]),
    "shape_of_truths": one_tensor(shape=[True]),
    "shape_is_a_text": one_tensor(shape="12"),
    "shape_is_an_object": one_tensor(shape={"1": 2}),
    "shape_negative_twice": one_tensor(shape=[-8, -8]),
    "shape_empty_but_large": only({"a": {"dtype": "F64", "shape": [0, 2**62, 2**62], "data_offsets": [0, 0]}}),
    "shape_nan": only(b'{"a":{"dtype":"U8","shape":[NaN],"data_offsets":[0,0]}}'),
    "offsets_of_2_to_64": one_tensor(data_offsets=[2**64, 2**64 + 8]),
    "offsets_of_4000_digits": one_tensor(data_offsets=[10**4000, 10**4000]),
    "offsets_negative": one_tensor(data_offsets=[-8, 8]),
    "offsets_infinite": one_tensor(data_offsets=[float("-inf"), float("inf")]),
    "offsets_of_three": one_tensor(data_offsets=[0, 8, 16]),
    "offsets_are_texts": one_tensor(data_offsets=["0", "8"]),
    "offsets_swapped": swapped_offsets,
    "all_at_the_same_place": all_at_the_same_place,
    "all_doubled": doubled,
    "dtype_unknown": one_tensor(dtype="F4_SECRET"),
    "dtype_of_a_megabyte": one_tensor(dtype="F" * 1_000_000),
    "dtype_with_controls": one_tensor(dtype="\x1b]0;owned\x07\n✗ all is well"),
    "dtype_is_a_list": one_tensor(dtype=["F32"]),
    "dtype_is_an_object": one_tensor(dtype={"F32": 1}),
    "dtype_is_null": one_tensor(dtype=None),
    "entry_is_a_number": only({"a": 1}),
    "entry_is_a_text": only({"a": "dtype"}),
    "metadata_is_a_list": only({"__metadata__": [1], "a": EMPTY_TENSOR}),
    "metadata_of_texts_only": only({"__metadata__": "x" * 1_000_000}),
    "name_with_controls": renamed("\x1b]0;owned\x07\n✗ all is well\r\u202e.weight"),
    "name_of_a_megabyte": renamed("x" * 1_000_000),
    "name_empty": renamed(""),
    "name_of_half_a_pair": renamed("\ud800.weight"),
    "name_leads_away": renamed("../../../etc/passwd"),
    "name_with_a_huge_layer": renamed("model.layers." + "9" * 5000 + ".mlp.experts.1.up_proj.weight_packed"),
    "name_with_layer_2_to_64": renamed(f"model.layers.{2**64}.mlp.experts.{2**64}.up_proj.weight_packed"),
    "name_with_a_million_dots": renamed("." * 1_000_000),
    "no_tensors": only({}),
    "a_list": only([]),
    "not_utf8": only(b'{"\xff":1}'),
    "utf16": only('{"a":1}'.encode("utf-16")),
    "a_million_empty_tensors": only({f"a{number}": EMPTY_TENSOR for number in range(100_000)}),
    "length_alone": lambda path: path.write_bytes(b"\x02\0\0\0\0\0\0\0"),  # type: ignore[dict-item]
}
