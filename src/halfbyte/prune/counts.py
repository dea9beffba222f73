"""What a number of experts means for the engines that will serve it.

From vLLM at commit a014e35f: the router's GEMM for DeepSeek-V3 shapes exists for 256 and 384 experts only
(gate_linear.py), SGLang's `dsv3_router_gemm` and `kimi_k2_moe_fused_gate` likewise; FlashInfer's FP8 experts need a
multiple of 4 and at most 512 (trtllm_fp8_moe.py); expert parallelism needs a multiple of its size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from halfbyte.machine.advice import Advice

FAST_ROUTER = (256, 384)
LOADS_WELL = 32
FP8_MULTIPLE, FP8_MOST = 4, 512
PARALLEL = (2, 4, 8, 16, 32, 64)


@dataclass(frozen=True, slots=True)
class CountFacts:
    """What engines can do with so many experts in a layer."""

    count: int
    fast_router: bool
    loads_well: bool
    flashinfer_fp8: bool
    parallel: tuple[int, ...]  # sizes of expert parallelism that divide it

    def as_dict(self) -> dict[str, Any]:
        """Return plain data."""
        return {**asdict(self), "parallel": list(self.parallel)}


def count_facts(count: int) -> CountFacts:
    """Return what is known of a count."""
    return CountFacts(
        count=count,
        fast_router=count in FAST_ROUTER,
        loads_well=count % LOADS_WELL == 0,
        flashinfer_fp8=count % FP8_MULTIPLE == 0 and count <= FP8_MOST,
        parallel=tuple(size for size in PARALLEL if count % size == 0),
    )


def count_advice(count: int, experts: int, *, parallel: Sequence[int] = ()) -> list[Advice]:
    """Return the sentences about keeping so many of so many experts; `parallel` are sizes that somebody serves with."""
    facts = count_facts(count)
    found: list[Advice] = []
    if facts.fast_router:
        found.append(Advice("good", f"{count} experts keep the fast router kernels of vLLM and SGLang"))
    elif experts in FAST_ROUTER:
        larger = [fast for fast in FAST_ROUTER if count < fast < experts]
        instead = f"keep {larger[0]} to have them" if larger else ""
        what = f"{count} experts lose the fast router kernels of vLLM and SGLang, which exist for 256 and 384"
        found.append(Advice("note", what, instead))
    if not facts.loads_well:
        near = " or ".join(str(near) for near in _around(count, LOADS_WELL) if 0 < near < experts)
        if near:  # a model of 32 experts has no such choice
            found.append(Advice("note", f"{count} is no multiple of 32, as engines like it", f"keep {near}"))
    if not facts.flashinfer_fp8:
        found.append(Advice("note", f"FlashInfer's FP8 experts need a multiple of 4 up to 512, and {count} is none"))
    for size in parallel:
        if count % size:
            near = " or ".join(str(near) for near in _around(count, size) if 0 < near < experts)
            what = f"{count} experts cannot be split over {size} devices by expert parallelism"
            found.append(Advice("bad", what, f"keep {near}" if near else ""))
    return found


def _around(count: int, step: int) -> tuple[int, int]:
    return count // step * step, (count // step + 1) * step
