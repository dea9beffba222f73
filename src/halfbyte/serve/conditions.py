"""When a rule holds: the words that conditions may use, and how they are compared with the facts of a launch.

A fact is text, a number, a version, true or false, or None where there is none: then no text and no bound holds, and
yes-or-no is no. Text matches with `*`, a list matches where one of it does, and a bound is written as "< 0.26".
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
    """All that a rule may ask; what is not asked does not matter."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    # Text. `format` is the beginning of `quantization`: nvfp4, mxfp4, int4, fp8 or bf16.
    engine: Words = None
    build: Words = None  # "none" for a release
    vendor: Words = None  # nvidia, amd or cpu
    arch: Words = None
    interconnect: Words = None
    format: Words = None
    quantization: Words = None
    activations: Words = None
    family: Words = None
    emulated_activations: Words = None  # what --activations says; "none" for nothing
    checkpoint_kv: Words = None  # what config.json asks for; "none" for nothing
    moe_backend: Words = None  # what was chosen; "none" for the engine's own choice
    # Yes or no.
    mla: bool | None = None
    vision: bool | None = None
    text_only: bool | None = None
    pruned: bool | None = None
    uneven: bool | None = None
    ep: bool | None = None
    emulate: bool | None = None  # through our plugin for vLLM: the 4-bit formats are then BF16 for the engine's kernels
    eager: bool | None = None  # what was chosen for enforce_eager
    draft: bool | None = None
    draft_mla: bool | None = None
    remote_tokenizer: bool | None = None
    linked: bool | None = None  # a snapshot in the Hub's cache, whose files are links
    hub: bool | None = None  # served by its name on the Hub, not from the folder
    revision: bool | None = None  # whether the commit is known
    fast_gate: bool | None = None  # whether SGLang's fast gate knows this number of experts
    # Bounds.
    version: str | None = None
    tp: str | None = None
    dcp: str | None = None
    context: str | None = None
    concurrency: str | None = None
    kept: str | None = None  # the share of the experts that is left
    experts_mod_4: str | None = None
    experts_left: str | None = None  # over after each GPU has got as many as every other
    heads_mod_16: str | None = None  # of the heads on one GPU
    batched_tokens: str | None = None

    @field_validator("version", "tp", "dcp", "context", "concurrency", "kept", "experts_mod_4", "experts_left",
                     "heads_mod_16", "batched_tokens")  # fmt: skip
    @classmethod
    def _is_a_bound(cls, value: str | None) -> str | None:
        if value is not None and not _BOUND.fullmatch(value):
            raise ValueError(f"'{value}' is no bound; write one like '>= 8192'")
        return value

    def holds(self, facts: Facts) -> bool:
        """Whether every condition is met."""
        return all(_met(getattr(self, name), facts[name], name) for name in sorted(self.model_fields_set))


def _met(asked: Any, fact: Any, name: str) -> bool:
    if asked is None:
        return True
    if isinstance(asked, bool):
        return bool(fact) is asked
    if fact is None:
        return False
    if name == "version":
        return _compared(asked, version_key(str(fact)), version_key)
    if isinstance(asked, str) and _BOUND.fullmatch(asked):
        return _compared(asked, float(fact), float)
    patterns = (asked,) if isinstance(asked, str) else asked
    return any(fnmatchcase(str(fact), pattern) for pattern in patterns)


def _compared(bound: str, fact: Any, read: Callable[[str], Any]) -> bool:
    parts = _BOUND.fullmatch(bound)
    assert parts is not None  # checked when it was read
    return _COMPARE[parts[1]](fact, read(parts[2]))


def version_key(text: str) -> tuple[int, int, int, int]:
    """Return what orders versions: 0.19.2rc1 is before 0.19.2, and `latest` after all."""
    found = re.match(r"v?(\d+)(?:\.(\d+))?(?:\.(\d+))?(a|b|rc|\.?dev)?", text)
    if not found:
        return (1 << 30, 0, 0, 0)
    major, minor, patch = (int(part or 0) for part in found.groups()[:3])
    return (major, minor, patch, -1 if found[4] else 0)
