"""Compute roofline limits of prefill and decode from geometry, format and the GPUs' data sheets.

A step runs part by part: routed experts, other weights, output head, attention over the cache. Each part takes the
longer of its memory time and its compute time, and parts run in sequence. Each step reads an expert at most once. With
uniform routing, n requests use E * (1 - (1 - k/E)^n) experts. The layout is tensor parallel: every GPU reads its own
copy of replicated weights and of MLA's cache.

Communication, kernel launches, expert imbalance and sampling are not modeled. A limit is therefore never reached, and
the ratio of two limits is the most that a format can gain.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from halfbyte.errors import UsageError
from halfbyte.formats.registry import activation_formats
from halfbyte.serve.gpus import Gpus
from halfbyte.serve.needs import ABSORBED, EXPERTS, WHOLE, Needs, Part

Phase = Literal["prefill", "decode"]
CHUNK = 8192  # prompt tokens per step: vLLM's default --max-num-batched-tokens on large GPUs
# A token reads one row of the embedding and nothing of the vision tower.
_NOT_READ = (ABSORBED, "embedding", "vision tower", "projector", "buffers")
_HEAD = "output head"
_WIDER: Mapping[str, str] = {"fp4": "fp8", "fp8": "bf16"}
_KV_NBYTES: Mapping[str, int] = {"bf16": 2, "fp8": 1}
_WIDTHS: Mapping[str, float] = {"fp4": 0.75, "fp8": 1.25}  # upper limits in bytes per parameter, including scales


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of one part of a step on each GPU: bytes, operations, and the time of each."""

    name: str
    nbytes: float
    operations: float
    memory_s: float
    compute_s: float

    @property
    def seconds(self) -> float:
        """The longer of the two."""
        return max(self.memory_s, self.compute_s)


@dataclass(frozen=True, slots=True)
class Limit:
    """The maximum tokens per second of a node, and the bottleneck."""

    phase: Phase
    concurrency: int
    tokens_per_second: float
    per_user: float
    bound_by: str  # "memory" or "compute", whichever dominates the step
    costs: tuple[Cost, ...]


def decode_limit(
    needs: Needs, gpus: Gpus, concurrency: int, context: float, *, activations: str = "none", kv_dtype: str = "bf16"
) -> Limit:
    """Return the decode limit: one token for each concurrent request, with `context` tokens in its cache."""
    return _limit("decode", needs, gpus, (concurrency, context), activations, kv_dtype)


def prefill_limit(  # noqa: PLR0913 - everything that determines a limit
    needs: Needs,
    gpus: Gpus,
    concurrency: int,
    prompt: int,
    *,
    activations: str = "none",
    kv_dtype: str = "bf16",
    chunk: int = CHUNK,
) -> Limit:
    """Return the prefill limit of concurrent requests, with chunked prefill."""
    step = (min(prompt * concurrency, chunk), prompt / 2)
    return _limit("prefill", needs, gpus, step, activations, kv_dtype, prompt=prompt, users=concurrency)


def _limit(  # noqa: PLR0913 - everything that determines a limit
    phase: Phase,
    needs: Needs,
    gpus: Gpus,
    step: tuple[int, float],
    activations: str,
    kv_dtype: str,
    *,
    prompt: int = 0,
    users: int = 1,
) -> Limit:
    if not gpus.memory_tb_s or not gpus.pflops:
        raise UsageError(f"unknown speed of {gpus.name}", where="--gpus", fix="use a GPU with published figures")
    if kv_dtype not in _KV_NBYTES:
        raise UsageError(f"invalid KV cache dtype '{kv_dtype}'", where="kv_dtype", fix="use bf16 or fp8")
    tokens, context = step
    # The output head computes one token per prompt, so a chunk has a fraction of it.
    head_tokens = tokens if phase == "decode" else tokens / prompt
    costs = [_weights(part, needs, gpus, head_tokens if part.name == _HEAD else tokens, activations)
             for part in needs.parts if part.name not in _NOT_READ]  # fmt: skip
    # In decode each request reads its own cache. A prefill chunk reads the cache of each of its prompts once.
    caches = tokens if phase == "decode" else max(1.0, tokens / prompt)
    costs.append(_attention(phase, needs, gpus, (tokens, context, caches), _KV_NBYTES[kv_dtype]))
    seconds = sum(cost.seconds for cost in costs)
    in_memory = sum(cost.seconds for cost in costs if cost.memory_s >= cost.compute_s)
    bound = "memory" if in_memory * 2 >= seconds else "compute"
    users = tokens if phase == "decode" else users
    return Limit(phase, users, tokens / seconds, tokens / seconds / users, bound, tuple(costs))


def _weights(part: Part, needs: Needs, gpus: Gpus, tokens: float, activations: str) -> Cost:
    share = 1 if part.placed == WHOLE else 1 / gpus.count
    nbytes, parameters = float(part.nbytes), float(part.parameters)
    if part.placed == EXPERTS:
        nbytes = sum(row.nbytes * distinct(tokens, row.experts, needs.active_experts) / row.experts
                     for row in needs.routed)  # fmt: skip
        every = sum(row.experts * row.layers for row in needs.routed)
        parameters = part.parameters * needs.active_experts * sum(row.layers for row in needs.routed) / every
    operations = 2 * parameters * tokens * share
    return _cost(part.name, nbytes * share, operations, gpus, _kind(part, activations))


def distinct(tokens: float, experts: int, active: int) -> float:
    """Return the expected number of distinct experts of a layer that the tokens use, with uniform routing."""
    return experts * (1 - (1 - active / experts) ** tokens)


def _kind(part: Part, activations: str) -> str:
    """Return the number format of a part's matrix multiplication. 16-bit activations expand weights to 16 bits."""
    width = part.nbytes / part.parameters if part.parameters else 2.0
    inputs = activation_formats().get(activations)
    return inputs.computes_in if inputs is not None and width < _WIDTHS[inputs.computes_in] else "bf16"


def _attention(phase: Phase, needs: Needs, gpus: Gpus, step: tuple[int, float, float], kv_nbytes: int) -> Cost:
    """Return the cost of attention. MLA decodes on the latent and prefills on keys and values."""
    tokens, context, caches = step
    split = min(needs.kv_heads, gpus.count)
    heads = needs.heads or 1
    if needs.latent is not None and needs.value_latent is not None:
        rotary = needs.latent - needs.value_latent
        each = heads * (needs.latent + needs.value_latent)
        if phase == "prefill":
            each = (needs.expanded or 0) + heads * rotary
        operations = 2 * needs.layers * each * context
    else:
        operations = 2 * needs.kv_values * heads / needs.kv_heads * context
    read = caches * context * needs.kv_values * kv_nbytes / split
    return _cost("attention to the cache", read, operations * tokens / gpus.count, gpus, "bf16")


def _cost(name: str, nbytes: float, operations: float, gpus: Gpus, kind: str) -> Cost:
    speeds = dict(gpus.pflops)
    while kind not in speeds:
        kind = _WIDER[kind]
    return Cost(name, nbytes, operations, nbytes / (gpus.memory_tb_s * 1e12), operations / (speeds[kind] * 1e15))
