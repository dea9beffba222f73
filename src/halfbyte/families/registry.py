"""The known model families. A family is one folder; a new one is a new row here."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import import_module
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from halfbyte.errors import CheckpointError, UsageError
from halfbyte.families.family import Family, read_family
from halfbyte.machine.library_settings import limit_onednn

if TYPE_CHECKING:
    from halfbyte.forward.model import TextModel

ATTENTIONS = ("sdpa", "eager")

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


def text_model(config: Mapping[str, Any], attention: str = "sdpa") -> TextModel:
    """Return the text model of a config.json; raise CheckpointError if its layers cannot be run."""
    family = family_of(config)
    if family.forward is None:
        what = f"unsupported model_type '{config.get('model_type')}': halfbyte cannot run its layers"
        supported = ", ".join(name for family in families() if family.forward for name in family.model_types)
        raise CheckpointError(what, where="config.json", fix=f"use a recipe without calibration, or one of {supported}")
    limit_onednn()
    if attention not in ATTENTIONS:
        raise UsageError(f"unknown attention '{attention}'", fix=f"choose one of {', '.join(ATTENTIONS)}")
    return import_module(family.forward.module).text_model(family, config, attention)


def family_of(config: Mapping[str, Any]) -> Family:
    """Return the family of a config.json."""
    model_type = config.get("model_type")
    for family in families():
        if model_type in family.model_types:
            return family
    known = ", ".join(name for family in families() for name in family.model_types)
    fix = f"supported: {known}; to add a family, see docs/add-a-family.md"
    raise CheckpointError(f"unknown model_type {model_type!r}", where="config.json", fix=fix)
