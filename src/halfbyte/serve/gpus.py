"""The GPUs that halfbyte knows, and `8xB200` as people write it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from typing import Any

from halfbyte.errors import UsageError

_GIB = 1 << 30
_TIMES = "\u00d7"


@dataclass(frozen=True, slots=True)
class Gpus:
    """Some GPUs of one kind; what each field means is said in `data/gpus.yaml`."""

    count: int
    name: str
    memory_nbytes: int
    vendor: str = "nvidia"
    arch: str = ""
    interconnect: str = "nvlink"
    fp4: tuple[str, ...] = ()
    box: int = 8
    multiprocessors: int = 0
    memory_tb_s: float = 0.0
    pflops: tuple[tuple[str, float], ...] = ()

    def __str__(self) -> str:
        return f"{self.count}x{self.name}"


@cache
def known_gpus() -> Mapping[str, Gpus]:
    """Return one GPU of each kind that halfbyte knows, by its name."""
    import yaml  # noqa: PLC0415 - only who asks what fits needs the table

    rows: Mapping[str, Mapping[str, Any]] = yaml.safe_load(
        files("halfbyte.serve").joinpath("data/gpus.yaml").read_text(encoding="utf-8")
    )
    return {name: _kind(name, row) for name, row in rows.items()}


def _kind(name: str, row: Mapping[str, Any]) -> Gpus:
    return Gpus(
        count=1,
        name=name,
        memory_nbytes=int(row["memory_gib"] * _GIB),
        vendor=row["vendor"],
        arch=row["arch"],
        interconnect=row["interconnect"],
        fp4=tuple(row["fp4"]),
        box=row["box"],
        multiprocessors=row.get("multiprocessors", 0),
        memory_tb_s=row["memory_tb_s"],
        pflops=tuple(row["pflops"].items()),
    )


def parse_gpus(text: str, where: str = "--gpus") -> Gpus:
    """Read `8xB200`, or with a multiplication sign, in any case, with any spaces and dashes; `where` is the option."""
    count, _, word = text.lower().replace(_TIMES, "x").partition("x")
    if not re.fullmatch(r"\s*[1-9][0-9]{0,4}\s*", count, re.ASCII):
        raise UsageError(f"'{text}' is no number of GPUs", where=where, fix="write it like 8xB200")
    names = {_plain(name): name for name in known_gpus()}
    if _plain(word) not in names:
        # No guess: GB300 and MI300X are other hardware than the nearest name here, not misspellings of it.
        fix = f"known are {', '.join(known_gpus())}"
        raise UsageError(f"the GPU '{word.strip()}' is not known", where=where, fix=fix)
    return replace(known_gpus()[names[_plain(word)]], count=int(count))


def _plain(name: str) -> str:
    return "".join(letter for letter in name.lower() if letter.isalnum())
