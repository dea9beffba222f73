"""Known GPUs, and the parser for `--gpus` and `--fit`: 8xB200, or 8x80GB for GPUs that are not in the table."""

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
_MEMORY = re.compile(r"([1-9][0-9]{0,3})\s*(gb|gib)", re.ASCII)
_UNIT_NBYTES = {"gb": 10**9, "gib": _GIB}
UNKNOWN_ARCH = "unknown"


@dataclass(frozen=True, slots=True)
class Gpus:
    """A number of GPUs of one kind; `data/gpus.yaml` explains the fields."""

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
    also: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.count}x{self.name}"


@cache
def known_gpus() -> Mapping[str, Gpus]:
    """Return one GPU of each known kind, by name."""
    import yaml  # noqa: PLC0415 - keeps startup fast

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
        also=tuple(row.get("also", ())),
    )


def parse_gpus(text: str, where: str = "--gpus") -> Gpus:
    """Parse `8xB200`, with `x` or a multiplication sign, ignoring case, spaces and dashes.

    `8x80GB` stands for any GPU with that much memory. `where` is the option that errors name.
    """
    names = {_plain(name): gpu for gpu in known_gpus().values() for name in (gpu.name, *gpu.also)}
    _refuse_without_count(text, names.get(_plain(text)), where)
    count, _, word = text.lower().replace(_TIMES, "x").partition("x")
    if not re.fullmatch(r"\s*[1-9][0-9]{0,4}\s*", count, re.ASCII) or not word.strip():
        what = f"'{text}' is not a valid number and kind of GPUs"
        raise UsageError(what, where=where, fix="use a form like 8xB200 or 8x80GB")
    if _plain(word) in names:
        return replace(names[_plain(word)], count=int(count))
    memory = _MEMORY.fullmatch(word.strip())
    if memory is None:
        # No suggestion by spelling: GB300 and B300 are different hardware.
        fix = f"use one of {', '.join(known_gpus())}, or the memory of each GPU, as in 8x80GB"
        raise UsageError(f"unknown GPU '{word.strip()}'", where=where, fix=fix)
    size, unit = int(memory[1]), memory[2]
    name = f"{size}{'GB' if unit == 'gb' else 'GiB'}"
    return Gpus(int(count), name, size * _UNIT_NBYTES[unit], arch=UNKNOWN_ARCH)


def _refuse_without_count(text: str, gpu: Gpus | None, where: str) -> None:
    """Raise UsageError for `A100` or `80GB` and suggest a full machine of that GPU: `8xA100`."""
    memory = _MEMORY.fullmatch(text.strip().lower())
    if gpu is not None or memory is not None:
        full = f"{gpu.box}x{gpu.name}" if gpu else f"8x{text.strip()}"
        fix = f"use {full.replace(' ', '')}, or another count"
        raise UsageError(f"'{text}' has no GPU count", where=where, fix=fix)


def _plain(name: str) -> str:
    return "".join(letter for letter in name.lower() if letter.isalnum())
