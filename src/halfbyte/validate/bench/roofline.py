"""How fast could it be at most? Limits of prefill and decode from geometry, format and the GPUs' data sheets.

A token is made part by part: routed experts, the other weights, the head, attention over the cache. Each part takes as
long as its bytes or its arithmetic, whichever is longer, and parts follow each other. Experts are read once a step
however many requests want them; with uniform routing n requests want E * (1 - (1 - k/E)^n) of them. The layout is
tensor parallelism: what engines keep whole on each GPU is read by each, and so is MLA's cache.

Nothing else is counted: no communication, no launch of a kernel, no imbalance of experts, no sampling. So a limit is
never reached, and a ratio of two limits is what a format can give in principle.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from halfbyte.errors import UsageError
from halfbyte.serve.gpus import Gpus
from halfbyte.serve.needs import ABSORBED, EXPERTS, WHOLE, Needs, Part

Phase = Literal["prefill", "decode"]
CHUNK = 8192  # prompt tokens in one step, as vLLM's --max-num-batched-tokens has it on large GPUs
# A token reads one row of the embedding and nothing of the tower.
_NOT_READ = (ABSORBED, "embedding", "vision tower", "projector", "buffers")
_HEAD = "output head"
_WIDER: Mapping[str, str] = {"fp4": "fp8", "fp8": "bf16"}
_KV_NBYTES: Mapping[str, int] = {"bf16": 2, "fp8": 1}
_FOUR_BITS, _EIGHT_BITS = 0.75, 1.25  # bytes a parameter, scales included, that still count as such


@dataclass(frozen=True, slots=True)
class Cost:
    """One part of a step on each GPU: bytes from memory, operations, and how long either takes."""

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
    """The most tokens a second that a node can make, and what holds it there."""

    phase: Phase
    concurrency: int
    tokens_per_second: float
    per_user: float
    bound_by: str  # "memory" or "compute", whichever takes most of the step
    costs: tuple[Cost, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return it for JSON."""
        return asdict(self)


def decode_limit(
    needs: Needs, gpus: Gpus, concurrency: int, context: float, *, activations: str = "none", kv_dtype: str = "bf16"
) -> Limit:
    """Return the limit of decoding: one token for each of so many requests, whose caches hold `context` tokens."""
    return _limit("decode", needs, gpus, (concurrency, context), activations, kv_dtype)


def prefill_limit(  # noqa: PLR0913 - what decides a limit
    needs: Needs,
    gpus: Gpus,
    concurrency: int,
    prompt: int,
    *,
    activations: str = "none",
    kv_dtype: str = "bf16",
    chunk: int = CHUNK,
) -> Limit:
    """Return the limit of reading the prompts of so many requests, in chunks as engines do."""
    step = (min(prompt * concurrency, chunk), prompt / 2)
    return _limit("prefill", needs, gpus, step, activations, kv_dtype, prompt=prompt, users=concurrency)


def output_limit(decode: Limit, prefill: Limit, prompt: int, output: int) -> float:
    """Return the most output tokens a second of a node that reads prompts and writes answers in steps of their own.

    Engines mix both in one step, which then reads the weights once: this is where they start from, no strict limit.
    """
    return output / (prompt / prefill.tokens_per_second + output / decode.tokens_per_second)


def _limit(  # noqa: PLR0913 - what decides a limit
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
        raise UsageError(f"nothing is known of the speed of {gpus.name}", where="--gpus", fix="take one with figures")
    if kv_dtype not in _KV_NBYTES:
        raise UsageError(f"no cache is of {kv_dtype}", where="kv_dtype", fix="bf16 or fp8")
    tokens, context = step
    # The head makes one token a prompt: a chunk of it has a share.
    made = tokens if phase == "decode" else tokens / prompt
    costs = [_weights(part, needs, gpus, made if part.name == _HEAD else tokens, activations)
             for part in needs.parts if part.name not in _NOT_READ]  # fmt: skip
    # In decode each request has a cache of its own; a chunk reads the cache of each prompt in it once.
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
    """Return how many experts of a layer so many tokens want, if each takes any `active` of them."""
    return experts * (1 - (1 - active / experts) ** tokens)


def _kind(part: Part, activations: str) -> str:
    """Return in what kind of number a part is multiplied; 16-bit inputs expand any weights to 16 bits."""
    width = part.nbytes / part.parameters if part.parameters else 2.0
    if activations in ("nvfp4", "mxfp4") and width < _FOUR_BITS:
        return "fp4"
    return "fp8" if activations == "fp8" and width < _EIGHT_BITS else "bf16"


def _attention(phase: Phase, needs: Needs, gpus: Gpus, step: tuple[int, float, float], kv_nbytes: int) -> Cost:
    """Return what attending to the cache costs; decode in MLA works on the latent, prefill on keys and values."""
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
