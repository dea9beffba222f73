"""The known model families. A family is one folder; a new one is a new row here."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

from halfbyte.errors import CheckpointError
from halfbyte.families.family import Family, read_family

FAMILIES: tuple[str, ...] = (
    "halfbyte.families.deepseek_v3",
    "halfbyte.families.kimi_k25",
    "halfbyte.families.qwen3_moe",
)


def families() -> tuple[Family, ...]:
    """Return all families."""
    return tuple(map(_load, FAMILIES))


@cache
def _load(package: str) -> Family:
    return read_family(package.rpartition(".")[2], files(package).joinpath("tensors.json").read_text(encoding="utf-8"))


def family_of(config: Mapping[str, Any]) -> Family:
    """Return the family of a config.json."""
    model_type = config.get("model_type")
    for family in families():
        if model_type in family.model_types:
            return family
    known = ", ".join(name for family in families() for name in family.model_types)
    fix = f"supported: {known}; to add a family, see docs/add-a-family.md"
    raise CheckpointError(f"unknown model_type {model_type!r}", where="config.json", fix=fix)
