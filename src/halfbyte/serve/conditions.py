"""Conditions of rules, and how they are compared with the facts of a launch.

A fact is text, a number, a version, a boolean, or None if unknown. None matches no text and no bound, and counts as
false. Text may contain `*`, a list matches if one of its items does, and a bound is written as "< 0.26".
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from typing import Any

from pydantic import BaseModel, ConfigDict, field_validator

Facts = Mapping[str, Any]
Words = str | tuple[str, ...] | None

_BOUND = re.compile(r"(<=|>=|<|>|=)\s*([0-9][0-9a-z.]*)")
_COMPARE: Mapping[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "=": operator.eq,
}


class When(BaseModel):
    """The conditions of a rule; a condition that is not set always holds."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    # Text. `format` is the first part of `quantization`: nvfp4, mxfp4, int4, fp8 or bf16.
    engine: Words = None
    build: Words = None  # "none" for a release
    vendor: Words = None  # nvidia, amd or cpu
    arch: Words = None
    interconnect: Words = None
    format: Words = None
    quantization: Words = None
    activations: Words = None
    family: Words = None
    emulated_activations: Words = None  # the value of --activations, or "none"
    checkpoint_kv: Words = None  # the KV cache format declared in config.json, or "none"
    moe_backend: Words = None  # the chosen backend, or "none" for the engine's default
    # Booleans.
    mla: bool | None = None
    vision: bool | None = None
    text_only: bool | None = None
    pruned: bool | None = None
    uneven: bool | None = None
    ep: bool | None = None
    emulate: bool | None = None  # with the vLLM plugin: 4-bit weights are BF16 for the engine's kernels
    eager: bool | None = None  # the chosen value of enforce_eager
    draft: bool | None = None
    draft_mla: bool | None = None
    remote_tokenizer: bool | None = None
    linked: bool | None = None  # a snapshot in the Hub cache, whose files are symlinks
    hub: bool | None = None  # served by its Hub name, not from the folder
    revision: bool | None = None  # whether the commit is known
    fast_gate: bool | None = None  # whether SGLang's fast gate supports this number of experts
    # Bounds.
    version: str | None = None
    tp: str | None = None
    dcp: str | None = None
    context: str | None = None
    concurrency: str | None = None
    kept: str | None = None  # the share of experts that pruning kept
    experts_mod_4: str | None = None
    experts_left: str | None = None  # experts modulo the number of GPUs
    heads_mod_16: str | None = None  # of the heads on one GPU
    batched_tokens: str | None = None

    @field_validator("version", "tp", "dcp", "context", "concurrency", "kept", "experts_mod_4", "experts_left",
                     "heads_mod_16", "batched_tokens")  # fmt: skip
    @classmethod
    def _is_a_bound(cls, value: str | None) -> str | None:
        if value is not None and not _BOUND.fullmatch(value):
            raise ValueError(f"'{value}' is not a valid bound; write one like '>= 8192'")
        return value

    def holds(self, facts: Facts) -> bool:
        """Return whether all conditions are met."""
        return all(_met(getattr(self, name), facts[name], name) for name in sorted(self.model_fields_set))


def _met(condition: Any, fact: Any, name: str) -> bool:
    if condition is None:
        return True
    if isinstance(condition, bool):
        return bool(fact) is condition
    if fact is None:
        return False
    if name == "version":
        return _compared(condition, version_key(str(fact)), version_key)
    if isinstance(condition, str) and _BOUND.fullmatch(condition):
        return _compared(condition, float(fact), float)
    patterns = (condition,) if isinstance(condition, str) else condition
    return any(fnmatchcase(str(fact), pattern) for pattern in patterns)


def _compared(bound: str, fact: Any, read: Callable[[str], Any]) -> bool:
    parts = _BOUND.fullmatch(bound)
    assert parts is not None  # validated by When
    return _COMPARE[parts[1]](fact, read(parts[2]))


def version_key(text: str) -> tuple[int, int, int, int]:
    """Return the sort key of a version: 0.19.2rc1 is before 0.19.2, and `latest` after all."""
    match = re.match(r"v?(\d+)(?:\.(\d+))?(?:\.(\d+))?(a|b|rc|\.?dev)?", text)
    if not match:
        return (1 << 30, 0, 0, 0)
    major, minor, patch = (int(part or 0) for part in match.groups()[:3])
    return (major, minor, patch, -1 if match[4] else 0)
