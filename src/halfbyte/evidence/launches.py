"""The record of `halfbyte serve --write`: a launch command for each engine, with the reason for each setting."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from halfbyte.evidence.record import Record


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchSetting:
    """A flag or environment variable with its value and reason."""

    setting: str
    flag: str
    value: Any
    reason: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchWarning:
    """A warning about a launch."""

    warning: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryFit:
    """Whether weights and KV cache fit on the GPUs, with the arithmetic. Bytes are per GPU."""

    gpus: str
    fits: bool
    problem: str | None
    advice: str
    tensor_parallel: int
    expert_parallel: bool
    decode_context_parallel: int
    gpu_memory_nbytes: int
    gpu_memory_utilization: float
    gpu_reserve_nbytes: int
    gpu_reserve_outside: bool
    gpu_weights_nbytes: int
    gpu_kv_nbytes: int
    kv_dtype: str
    kv_token_nbytes: float
    kv_tokens: int | None
    kv_tokens_fp8: int | None
    kv_tokens_bf16: int | None
    context: int | None
    concurrency: int
    full_contexts: float | None
    full_contexts_fp8: float | None
    weights: Mapping[str, int]
    reserve: Mapping[str, int]
    arithmetic: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchCommand:
    """How to start one engine."""

    engine: str
    version: str
    model: str
    served_name: str
    gpus: str
    image: str
    port: int
    command: tuple[str, ...]
    environment: Mapping[str, Any]
    settings: tuple[LaunchSetting, ...]
    warnings: tuple[LaunchWarning, ...]
    fit: MemoryFit | None  # null on a CPU
    docker: tuple[str, ...] | None  # null if it cannot run in docker


@dataclass(frozen=True, slots=True, kw_only=True)
class Launches(Record):
    """Launch commands, best engine first."""

    kind = "serve"
    file = "serve/serve.json"
    created_by = "halfbyte serve {out} --gpus NxGPU --write {out}/halfbyte/serve"

    written_by: str
    launches: tuple[LaunchCommand, ...]
