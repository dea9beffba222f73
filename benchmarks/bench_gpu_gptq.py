"""GPTQ on the GPU at the shapes of Kimi-K2.6: seconds per layer, and the share of the FP64 roofline.

    python benchmarks/bench_gpu_gptq.py [--experts 384] [-o FILE.json]

Random INT4-like weights and Hessians. Gate and up share one Hessian of 7,168 columns; each expert has its own of 2,048
for its down projection. The two products of the procedure, 2 K^2 FLOP per row each (half of it unneeded), set the
limit; rounding a block tries 15 scales.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path

import torch

from halfbyte.formats.gpu import gptq

D, F = 7168, 2048  # of Kimi-K2.6
GROUP = 16  # experts at a time
FP64_FLOPS = 67e12  # H200, tensor cores


def timed(work: Callable[[], object]) -> float:
    """Return seconds of the second of two runs."""
    work()
    torch.cuda.synchronize()
    start = time.perf_counter()
    work()
    torch.cuda.synchronize()
    return time.perf_counter() - start


def factor(h: torch.Tensor) -> gptq.DeviceFactors:
    """Return the factors of Hessians, including the order of their columns."""
    return gptq.factor(h, gptq.column_orders(h))


def hessians(count: int, k: int, tokens: int) -> torch.Tensor:
    """Return Hessians of random inputs."""
    found = torch.empty((count, k, k), dtype=torch.float64, device="cuda")
    for at in range(count):
        x = torch.randn(tokens, k, dtype=torch.float64, device="cuda")
        found[at] = x.t() @ x
    return found


def weights(count: int, n: int, k: int) -> torch.Tensor:
    """Return BF16 weights of INT4 groups of 32."""
    codes = torch.randint(-8, 8, (count, n, k), device="cuda", dtype=torch.int8)
    scale = (torch.rand(count, n, k // 32, device="cuda") * 0.004 + 0.001).repeat_interleave(32, dim=2)
    return (codes * scale).to(torch.bfloat16)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--experts", type=int, default=384)
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    if options.output:
        options.output.parent.mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, object]] = []
    groups = options.experts / GROUP

    def row(name: str, seconds: float, times: float, flops: float) -> None:
        share = flops / FP64_FLOPS / seconds
        print(f"{name:32} {seconds * 1e3:9.1f} ms x {times:6.1f} = {seconds * times:6.2f} s  {share:6.1%} of FP64")
        rows.append({"step": name, "seconds": seconds, "times": times, "flops": flops})

    h = hessians(1, D, 2 * D)
    row("factor, shared", timed(lambda: factor(h)), 1, 4 / 3 * D**3)
    shared = factor(h)

    w = weights(GROUP, F, D)
    amax = w.abs().amax(dim=(1, 2)).float()
    seconds = timed(lambda: gptq.compensate(w, amax, shared))
    row(f"gate or up, {GROUP} experts", seconds, 2 * groups, GROUP * F * D * D)
    first, second = (gptq.compensate(w, amax, shared) for _ in range(2))
    assert torch.equal(first.packed, second.packed)
    assert torch.equal(first.scale, second.scale)
    del first, second
    h = hessians(GROUP, F, F)
    row(f"factor, {GROUP} experts", timed(lambda: factor(h)), groups, GROUP * 4 / 3 * F**3)
    own = factor(h)
    w = weights(GROUP, D, F)
    amax = w.abs().amax(dim=(1, 2)).float()
    row(f"down, {GROUP} experts", timed(lambda: gptq.compensate(w, amax, own)), groups, GROUP * D * F * F)
    x = torch.randn(32768, D, device="cuda", dtype=torch.bfloat16)
    row("hessian, 32,768 tokens", timed(lambda: x.double().t() @ x.double()), 8, 2 * 32768 * D * D)
    act = torch.randn(5461, F, device="cuda", dtype=torch.bfloat16)
    row(
        "hessian of an expert, 5,461 tokens",
        timed(lambda: act.double().t() @ act.double()),
        options.experts,
        2 * 5461 * F * F,
    )
    print(f"peak memory {torch.cuda.max_memory_allocated() / 1e9:.1f} GB")
    if options.output:
        options.output.write_text(json.dumps({"gpu": torch.cuda.get_device_name(), "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
