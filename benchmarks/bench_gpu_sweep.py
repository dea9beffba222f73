"""The MSE sweep of NVFP4 block scales on a GPU, at the size of a Kimi-K2.6 layer, and byte for byte against the CPU.

    python benchmarks/bench_gpu_sweep.py            time whole layers, compare as much as fits into some time
    python benchmarks/bench_gpu_sweep.py --check    compare the hostile blocks only (small: for a memory checker)

Weights are Gaussian with rows of different size, on Kimi's INT4 grid (s = bf16(amax / 7)), made on the GPU; gate and up
share their amax. Times are medians of several runs between device events, the lists of close and undecided blocks
included. The hostile set is small, and has all that floating point finds hard.
Writes gpu_sweep_<machine>_<yyyymm>.{json,md}.
"""

from __future__ import annotations

import argparse
import datetime
import json
import statistics
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import triton

from halfbyte.formats.codec import amax, encode
from halfbyte.formats.encoded import Encoded, Quality
from halfbyte.formats.gpu import sweep
from halfbyte.formats.reference import int4
from halfbyte.formats.reference.floats import f32_to_bf16

EXPERTS, INTO, OUT_OF = 384, (2048, 7168), (7168, 2048)
DEVICE = "cuda"
GROUP, BLOCK = 32, 16
GOAL_SECONDS = 0.5
TILES = [(32, 1), (64, 1), (128, 1), (64, 2), (128, 2)]  # blocks and warps of a program
REPEATS = 7
Tensor = torch.Tensor
Stack = tuple[Tensor, Tensor, Tensor]  # packed, scale, amax


def gaussian(shape: tuple[int, int], generator: torch.Generator) -> Tensor:
    rows = torch.exp(torch.randn(shape[0], 1, device=DEVICE, generator=generator) * 0.3 - 4)
    return (torch.randn(shape, device=DEVICE, generator=generator) * rows).bfloat16()


def on_kimis_grid(weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Codes, scales and amax of one linear."""
    rows, columns = weight.shape
    groups = weight.float().view(rows, columns // GROUP, GROUP)
    scale = (groups.abs().amax(-1) / 7).bfloat16()
    q = torch.clamp(torch.round(groups / scale.float()[..., None]), -7, 7)
    top = (q.abs().amax(-1) * scale.float()).bfloat16().amax().float()
    codes = (q.to(torch.int32) + 8).view(rows, columns // 8, 8)
    packed = (codes << torch.arange(0, 32, 4, device=DEVICE, dtype=torch.int32)).sum(-1, dtype=torch.int32)
    return packed, scale, top


def int4_stack(experts: int, shape: tuple[int, int], seed: int) -> Stack:
    generator = torch.Generator(DEVICE).manual_seed(seed)
    rows, columns = shape
    packed = torch.empty(experts, rows, columns // 8, dtype=torch.int32, device=DEVICE)
    scale = torch.empty(experts, rows, columns // GROUP, dtype=torch.bfloat16, device=DEVICE)
    top = torch.empty(experts, device=DEVICE)
    for e in range(experts):
        packed[e], scale[e], top[e] = on_kimis_grid(gaussian(shape, generator))
    return packed, scale, top


def bf16_stack(experts: int, shape: tuple[int, int], seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator(DEVICE).manual_seed(seed)
    weight = torch.empty(experts, *shape, dtype=torch.bfloat16, device=DEVICE)
    for e in range(experts):
        weight[e] = gaussian(shape, generator)
    return weight, weight.abs().amax(dim=(1, 2)).float()


def seconds(work: Any) -> list[float]:
    """Times of several runs, after one that compiles."""
    work()
    times: list[float] = []
    for _ in range(REPEATS):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        work()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) / 1000)
    return times


class Nothing:
    """Stands in for the FP64 kernel, to time the FP32 one alone."""

    def __getitem__(self, grid: object) -> Any:
        return lambda *_, **__: None


def timed(work: Any) -> dict[str, float]:
    """Median, spread and the share of FP32."""
    times = seconds(work)
    exact, sweep._settle_close = sweep._settle_close, Nothing()
    try:
        screening = statistics.median(seconds(work))
    finally:
        sweep._settle_close = exact
    return {
        "seconds": statistics.median(times),
        "fastest": min(times),
        "slowest": max(times),
        "fp32_seconds": screening,
    }


def unsure(swept: list[sweep.Swept]) -> dict[str, int]:
    """How many blocks FP32 and FP64 could not decide."""
    return {
        "close": sum(int(one.close.sum()) for one in swept),
        "undecided": sum(int(one.count.sum()) for one in swept),
    }


def time_int4(layer: dict[str, Stack]) -> dict[str, Any]:
    blocks = sum(packed.numel() // 2 for packed, _, _ in layer.values())
    nbytes = sum(packed.nbytes + scale.nbytes for packed, scale, _ in layer.values()) + blocks
    result: dict[str, Any] = timed(lambda: [sweep.sweep_int4(*stack) for stack in layer.values()])
    swept = [sweep.sweep_int4(*stack) for stack in layer.values()]
    result |= unsure(swept) | {"blocks": blocks, "distinct_blocks": blocks, "nbytes": nbytes}
    result["tiles"] = time_tiles(lambda: sweep.sweep_int4(*layer["gate"]))
    return result


def time_tiles(work: Any) -> dict[str, float]:
    """The same with other sizes of a program."""
    chosen, result = (sweep._TILE, sweep._WARPS), {}
    for tile, warps in TILES:
        sweep._TILE, sweep._WARPS = tile, warps
        result[f"{tile} blocks, {warps} warps"] = statistics.median(seconds(work))
    sweep._TILE, sweep._WARPS = chosen
    return result


def time_bf16(weight: Tensor, top: Tensor) -> dict[str, Any]:
    """A layer is gate, up and down: this stack twice, and once in the other shape (the same blocks, counted once)."""
    stacks = [weight, weight, weight.view(len(weight), *OUT_OF)]
    result: dict[str, Any] = timed(lambda: [sweep.sweep_bf16(stack, top) for stack in stacks])
    result |= unsure([sweep.sweep_bf16(weight, top)]) | {"distinct_blocks": weight.numel() // BLOCK}
    result["tiles"] = time_tiles(lambda: sweep.sweep_bf16(weight, top))
    blocks = sum(stack.numel() // BLOCK for stack in stacks)
    return result | {"blocks": blocks, "nbytes": sum(stack.nbytes for stack in stacks) + blocks}


def int4_source(packed: Tensor, scale: Tensor) -> Encoded:
    rows, words = packed.shape
    tensors = {
        "weight_packed": packed.cpu().numpy(),
        "weight_scale": scale.view(torch.int16).cpu().numpy().view(np.uint16),
        "weight_shape": np.array([rows, words * 8], np.int32),
    }
    return Encoded("int4", (rows, words * 8), tensors, Quality(rows * words * 8, 0, 0, 0, 0))


def bits_of(weight: Tensor) -> Any:
    return weight.view(torch.int16).cpu().numpy().view(np.uint16)


def different(swept: Tensor, source: Any, top: float) -> int:
    """How many block scales differ from the CPU's."""
    expected = encode(source, "nvfp4", method="mse", amax=top).tensors["weight_scale"]
    return int((swept.cpu().numpy() != expected).sum())


def compare_int4(layer: dict[str, Stack], budget: float) -> dict[str, Any]:
    """Expert by expert, all three linears, until the time is up."""
    swept = {leaf: sweep.sweep_int4(*stack) for leaf, stack in layer.items()}
    settled = sum(sweep.settle_int4(swept[leaf], *stack) for leaf, stack in layer.items())
    return _compare(
        swept, {leaf: stack[2].tolist() for leaf, stack in layer.items()}, settled, budget,
        lambda leaf, e: int4_source(layer[leaf][0][e], layer[leaf][1][e]),
    )  # fmt: skip


def compare_bf16(weight: Tensor, top: Tensor, budget: float) -> dict[str, Any]:
    swept = sweep.sweep_bf16(weight, top)
    settled = sweep.settle_bf16(swept, weight, top)
    return _compare({"gate": swept}, {"gate": top.tolist()}, settled, budget, lambda _, e: bits_of(weight[e]))


def _compare(
    swept: dict[str, sweep.Swept], tops: dict[str, list[float]], settled: int, budget: float, source: Any
) -> dict[str, Any]:
    start, result = time.perf_counter(), {"experts": 0, "blocks": 0, "different": 0, "settled_on_host": settled}
    for e in range(len(next(iter(tops.values())))):
        for leaf, one in swept.items():
            result["different"] += different(one.scale[e], source(leaf, e), tops[leaf][e])
            result["blocks"] += one.scale[e].numel()
        result["experts"] += 1
        if time.perf_counter() - start > budget:
            break
    return result | {"cpu_seconds": time.perf_counter() - start}


def hostile() -> dict[str, Any]:
    """Matrices as BF16 patterns."""
    random = np.random.default_rng(7)
    shape, few = (512, 2048), (64, 256)  # few of those that only integers can decide: 5 ms a block
    ordinary = random.standard_normal(shape)
    by_block = np.repeat(random.integers(-24, 1, (shape[0], shape[1] // BLOCK)), BLOCK, axis=1)
    mixed = f32_to_bf16((random.standard_normal(few) * 0.02).astype(np.float32))
    mixed[0], mixed[1], mixed[2], mixed[3, 5] = 0, 0x8000, random.integers(1, 128, few[1]), 0x46EA
    values = {
        "small blocks": ordinary * 2.0**by_block,
        "powers of two": 2.0 ** random.integers(-6, 3, shape),
        "thirds": random.integers(-3, 4, shape) * 0.375,
        "constant rows": np.repeat(ordinary[:, :1], shape[1], axis=1),
        "40 binades": random.standard_normal(few) * 2.0 ** random.integers(-40, 3, few),
        "60 binades": random.standard_normal(few) * 2.0 ** random.integers(-60, 3, few),
        "huge": random.standard_normal(few) * 2.0 ** random.integers(90, 125, few),
    }
    matrices = {name: f32_to_bf16(np.asarray(one, np.float32)) for name, one in values.items()}
    matrices["subnormal"] = random.integers(0, 300, shape).astype(np.uint16)
    return matrices | {"mixed": mixed}


def random_codes() -> list[Encoded]:
    """All codes from -8 to 7, in half of the rows few distinct ones, under scales from 2^-133 to 2^123."""
    random = np.random.default_rng(8)
    sources: list[Encoded] = []
    for largest_exponent in (0, 5, 16, 40, 80, 120, 127, 160, 200, 249):
        q = random.integers(-8, 8, (512, 512))
        q[::2] = np.clip(np.sign(q[::2]) * random.integers(1, 9, (256, 1)), -8, 7)
        exponent = np.maximum(largest_exponent - random.integers(0, 16, (512, 1)), 0)
        scale = (random.integers(0, 1 << 16, (512, 16)) & 0x807F) | (exponent << 7)
        tensors = {"weight_packed": int4.pack(q.astype(np.int8)), "weight_scale": scale.astype(np.uint16)}
        tensors["weight_shape"] = np.array(q.shape, np.int32)
        sources.append(Encoded("int4", q.shape, tensors, Quality(q.size, 0, 0, 0, 0)))
    return sources


def check_int4(sources: list[Encoded]) -> dict[str, int]:
    packed = torch.from_numpy(np.stack([one.tensors["weight_packed"] for one in sources])).to(DEVICE)
    patterns = np.stack([one.tensors["weight_scale"] for one in sources]).view(np.int16)
    scale = torch.from_numpy(patterns).to(DEVICE).view(torch.bfloat16)
    top = torch.tensor([amax(one) for one in sources], device=DEVICE)
    swept = sweep.sweep_int4(packed, scale, top)
    return counted(swept, sweep.settle_int4(swept, packed, scale, top), sources, top)


def check_bf16(bits: Any) -> dict[str, int]:
    weight = torch.from_numpy(bits.view(np.int16)).to(DEVICE).view(torch.bfloat16)[None]
    top = torch.tensor([amax(bits)], device=DEVICE)
    swept = sweep.sweep_bf16(weight, top)
    return counted(swept, sweep.settle_bf16(swept, weight, top), [bits], top)


def counted(swept: sweep.Swept, settled: int, sources: list[Any], top: Tensor) -> dict[str, int]:
    return {
        "blocks": swept.scale.numel(),
        "close": int(swept.close.sum()),
        "settled_on_host": settled,
        "different": sum(map(different, swept.scale, sources, top.tolist())),
    }


def check_hostile() -> dict[str, dict[str, int]]:
    results: dict[str, dict[str, int]] = {}
    for name, bits in hostile().items():
        results[f"{name}, BF16"] = check_bf16(bits)
        if name != "huge":  # its INT4 codes may decode to infinities, which are refused
            results[f"{name}, INT4"] = check_int4([encode(bits, "int4")])
    results["random codes, INT4"] = check_int4(random_codes())
    return results


def machine() -> dict[str, str]:
    query = "name,driver_version,clocks.sm,clocks.max.sm,temperature.gpu"
    command = ["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader"]
    answer = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    return {
        "date": datetime.date.today().isoformat(),
        "gpu": answer,
        "torch": torch.__version__,
        "triton": triton.__version__,
    }


def written(results: dict[str, Any]) -> str:
    on = results["machine"]
    lines = [f"# MSE sweep on {on['gpu'].split(',')[0]}, {on['date']}", ""]
    lines += [
        "`benchmarks/bench_gpu_sweep.py`; a layer is 384 x (2 x [2048, 7168] + [7168, 2048]). GPU, driver, clock and"
    ]
    lines += [f"its maximum, degrees: {on['gpu']}; torch {on['torch']}, triton {on['triton']}.", ""]
    lines += [
        "| source | layer | goal | FP32 alone | slowest run | G blocks/s | close (to FP64) | undecided (to host) |"
    ]
    lines += ["|---|---|---|---|---|---|---|---|"]
    for name, goal in (("int4", f"{GOAL_SECONDS * 1000:.0f} ms"), ("bf16", "")):
        one = results[name]
        numbers = [f"{one[key] * 1000:.1f} ms" for key in ("seconds", "fp32_seconds", "slowest")]
        rate = f"{one['blocks'] / one['seconds'] / 1e9:.1f}"
        of = one["distinct_blocks"]
        close = f"{one['close']:,} ({one['close'] / of:.3%})"
        cells = [name.upper(), numbers[0], goal, numbers[1], numbers[2], rate, close, f"{one['undecided']:,} of {of:,}"]
        lines += ["| " + " | ".join(cells) + " |"]
    lines += ["", "| gate alone, blocks and warps of a program | INT4 | BF16 |", "|---|---|---|"]
    pairs = zip(results["int4"]["tiles"].items(), results["bf16"]["tiles"].values(), strict=True)
    lines += [f"| {name} | {one * 1000:.1f} ms | {other * 1000:.1f} ms |" for (name, one), other in pairs]
    lines += ["", "| compared with the CPU codec | blocks | close | settled on the host | different |"]
    lines += ["|---|---|---|---|---|"]
    for name, one in results["compared"].items():
        label = f"{name}, {one['experts']} experts" if "experts" in one else name
        cells = [label, f"{one['blocks']:,}", f"{one.get('close', '')}", str(one["settled_on_host"])]
        lines += ["| " + " | ".join([*cells, str(one["different"])]) + " |"]
    lines += ["", *results.get("notes", [])]
    return "\n".join(lines).rstrip() + "\n"


def measure(results: dict[str, Any], cpu_seconds: float, experts: int) -> Iterator[None]:
    """Fill in the results, one after the other."""
    layer = {leaf: int4_stack(experts, shape, n) for n, (leaf, shape) in enumerate(
        [("gate", INTO), ("up", INTO), ("down", OUT_OF)])}  # fmt: skip
    shared = torch.maximum(layer["gate"][2], layer["up"][2])
    layer |= {leaf: (*layer[leaf][:2], shared) for leaf in ("gate", "up")}
    results["int4"] = time_int4(layer)
    yield
    results["compared"]["INT4, realistic"] = compare_int4(layer, cpu_seconds)
    yield
    layer.clear()
    torch.cuda.empty_cache()
    weight, top = bf16_stack(experts, INTO, 3)
    results["bf16"] = time_bf16(weight, top)
    yield
    results["compared"]["BF16, realistic"] = compare_bf16(weight, top, cpu_seconds / 2)
    results["machine"]["gpu_after"] = machine()["gpu"]
    yield


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    parser.add_argument("--check", action="store_true", help="the hostile set only; writes nothing")
    parser.add_argument("--cpu-seconds", type=float, default=60, help="for the comparison on INT4; half of it on BF16")
    parser.add_argument("--experts", type=int, default=EXPERTS)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)  # before any work
    checked = check_hostile()
    for name, one in checked.items():
        print(f"{name:24} {one}")
    assert not any(one["different"] for one in checked.values())
    if args.check:
        return
    results: dict[str, Any] = {"machine": machine(), "compared": checked}
    name = f"gpu_sweep_{torch.cuda.get_device_name().split()[-1].lower()}_{datetime.date.today():%Y%m}"
    for _ in measure(results, args.cpu_seconds, args.experts):  # saved as it grows: device time is dear
        (args.out / f"{name}.json").write_text(json.dumps(results, indent=2) + "\n")
    (args.out / f"{name}.md").write_text(written(results))
    print(written(results))


if __name__ == "__main__":
    main()
