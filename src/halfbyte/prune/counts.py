"""Which expert counts the serving engines support well.

From vLLM at commit a014e35f: the router GEMM for DeepSeek-V3 shapes exists for 256 and 384 experts only
(gate_linear.py), SGLang's `dsv3_router_gemm` and `kimi_k2_moe_fused_gate` likewise; FlashInfer's FP8 experts need a
multiple of 4 and at most 512 (trtllm_fp8_moe.py); expert parallelism needs a multiple of its size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from halfbyte.ui.console import Advice

FAST_ROUTER = (256, 384)
LOADS_WELL = 32
FP8_MULTIPLE, FP8_MOST = 4, 512
PARALLEL = (2, 4, 8, 16, 32, 64)


@dataclass(frozen=True, slots=True)
class CountFacts:
    """Engine support for a number of experts per layer."""

    count: int
    fast_router: bool
    loads_well: bool
    flashinfer_fp8: bool
    parallel: tuple[int, ...]  # expert-parallel sizes that divide it

    def as_dict(self) -> dict[str, Any]:
        """Return plain data."""
        return {**asdict(self), "parallel": list(self.parallel)}


def count_facts(count: int) -> CountFacts:
    """Return the engine support for a count."""
    return CountFacts(
        count=count,
        fast_router=count in FAST_ROUTER,
        loads_well=count % LOADS_WELL == 0,
        flashinfer_fp8=count % FP8_MULTIPLE == 0 and count <= FP8_MOST,
        parallel=tuple(size for size in PARALLEL if count % size == 0),
    )


def count_advice(count: int, experts: int, *, parallel: Sequence[int] = ()) -> list[Advice]:
    """Return advice about keeping `count` of `experts`; `parallel` are the expert-parallel sizes to serve with."""
    facts = count_facts(count)
    advice: list[Advice] = []
    if facts.fast_router:
        advice.append(Advice("good", f"{count} experts keep the fast router kernels of vLLM and SGLang"))
    elif experts in FAST_ROUTER:
        larger = [fast for fast in FAST_ROUTER if count < fast < experts]
        instead = f"keep {larger[0]} to use them" if larger else ""
        what = f"{count} experts lose the fast router kernels of vLLM and SGLang, which exist for 256 and 384"
        advice.append(Advice("note", what, instead))
    if not facts.loads_well:
        near = " or ".join(str(near) for near in _around(count, LOADS_WELL) if 0 < near < experts)
        if near:  # a model with 32 experts has no alternative
            advice.append(Advice("note", f"{count} is not a multiple of 32, which engines prefer", f"keep {near}"))
    if not facts.flashinfer_fp8:
        advice.append(Advice("note", f"FlashInfer's FP8 MoE kernels need a multiple of 4 up to 512, not {count}"))
    for size in parallel:
        if count % size:
            near = " or ".join(str(near) for near in _around(count, size) if 0 < near < experts)
            what = f"{count} experts cannot be split over {size} devices by expert parallelism"
            advice.append(Advice("bad", what, f"keep {near}" if near else ""))
    return advice


def _around(count: int, step: int) -> tuple[int, int]:
    return count // step * step, (count // step + 1) * step
