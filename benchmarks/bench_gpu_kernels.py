"""The GPU kernels at the size of Kimi-K2.6's MoE layer: speed, and every byte against the CPU codec.

    PYTHONPATH=src python3 benchmarks/bench_gpu_kernels.py --out gpu_kernels.json     on a machine with a GPU
    python3 benchmarks/bench_gpu_kernels.py --small                                   each kernel once, for a sanitizer

Speed: median of several runs over 384 experts, in GB/s of the bytes read and written (each once), beside a copy on the
same device. "PyTorch" is what ModelOpt does, straightforwardly, on the same device: unpack, multiply, block amax,
scale, divide, look up the code, pack. Bytes: a whole layer on Kimi's grid and a stack of hostile experts go through
every kernel and through the CPU codec, and what differs is counted. Writes FILE and the table beside it (.md).
"""

import argparse
import datetime
import json
import platform
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
import triton
import triton.language as tl

from halfbyte.formats.codec import amax, decode, encode
from halfbyte.formats.cpu.kernels import bf16_blocks, int4_blocks
from halfbyte.formats.encoded import Encoded
from halfbyte.formats.gpu import blocks as gpu_blocks
from halfbyte.formats.gpu import decode as gpu_decode
from halfbyte.formats.gpu import mxfp4, nvfp4
from halfbyte.formats.gpu.scalars import bits_of, f32_of, quotient_of
from halfbyte.formats.reference import nvfp4 as reference

EXPERTS = 384
SHAPES = {"gate": (2048, 7168), "up": (2048, 7168), "down": (7168, 2048)}
CORES = 16
E2M1_BOUNDS = (0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0)


def median_ms(call, runs=9):
    call(), call()
    times = []
    for _ in range(runs):
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record(), call(), stop.record(), stop.synchronize()
        times.append(start.elapsed_time(stop))
    return sorted(times)[runs // 2]


def copy_bandwidth():
    """Bytes a second of copying 4 GiB, read and written."""
    source = torch.randint(0, 255, (1 << 32,), dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    return 2 * source.numel() / median_ms(lambda: target.copy_(source)) * 1e3


def realistic(experts, shape, seed):
    """INT4 on Kimi's grid over a bell curve whose width differs from row to row and expert to expert."""
    torch.manual_seed(seed)
    n, k = shape
    packed = torch.empty((experts, n, k // 8), dtype=torch.int32, device="cuda")
    scale = torch.empty((experts, n, k // 32), dtype=torch.bfloat16, device="cuda")
    shifts = torch.arange(0, 32, 4, device="cuda")
    for i in range(experts):
        width = 0.02 * torch.exp(0.3 * torch.randn((n, 1), device="cuda"))
        w = (torch.randn((n, k), device="cuda") * width).bfloat16().float().view(n, k // 32, 32)
        step = (w.abs().amax(-1, keepdim=True) / 7).bfloat16()
        q = (w / step.float()).round().clamp(-7, 7).to(torch.int64).view(n, k // 8, 8) + 8
        packed[i], scale[i] = (q << shifts).sum(-1).to(torch.int32), step.squeeze(-1)
    return packed, scale


def hostile(experts, shape, seed):
    """All 16 codes; scales from a few thousand random patterns an expert: any sign, subnormal, zero, 60 binades apart.

    Half of the experts have ordinary weights beside strange ones, the others come near the ends of FP32.
    """
    rng = np.random.default_rng(seed)
    n, k = shape
    packed = torch.randint(-(1 << 31), (1 << 31) - 1, (experts, n, k // 8), dtype=torch.int32, device="cuda")
    packed[:, 0], packed[:, 1, ::2] = -2004318072, -2004318072  # zeros
    scale = torch.empty((experts, n, k // 32), dtype=torch.bfloat16, device="cuda")
    for i in range(experts):
        low, high = [(0x3000, 0x3C00), (0, 0x7B00), (0, 0x0200), (0x7000, 0x7B00), (0x1000, 0x4800), (0, 0x4000)][i % 6]
        patterns = rng.integers(low, high, 2000).astype(np.uint16)
        patterns[:100] = rng.integers(0, 0x80, 100)  # subnormal and zero
        patterns[100:400] |= 0x8000
        chosen = torch.randint(0, 2000, (n, k // 32), device="cuda")
        scale[i] = torch.from_numpy(patterns.view(np.int16)).cuda()[chosen].view(torch.bfloat16)
    return packed, scale


def given_scales(of_max, seed):
    """Block scales as a sweep could choose them: near those of max."""
    generator = torch.Generator("cuda").manual_seed(seed)
    step = torch.randint(-6, 7, of_max.shape, generator=generator, device="cuda", dtype=torch.int16)
    return (of_max.to(torch.int16) + step).clamp_(1, 126).to(torch.uint8)


def pytorch_int4_to_nvfp4(packed, scale, top):
    """ModelOpt's steps in plain PyTorch for some experts."""
    shifts = torch.arange(0, 32, 4, device="cuda", dtype=torch.int32)
    q = ((packed.unsqueeze(-1) >> shifts) & 15).to(torch.bfloat16) - 8
    w = (q.view(*scale.shape, 32) * scale.unsqueeze(-1)).view(*packed.shape[:2], -1, 16).float()
    ws2 = (top / 2688).view(-1, 1, 1)
    s = w.abs().amax(-1) / (6 * ws2)
    s8 = torch.where(s == 0, 1.0, s).clamp(2**-9, 448).to(torch.float8_e4m3fn)
    y = w / (s8.float() * ws2).unsqueeze(-1)
    bounds = torch.tensor(E2M1_BOUNDS, device="cuda")
    size = y.abs()
    code = torch.searchsorted(bounds, size).to(torch.uint8)
    code += (size.unsqueeze(-1) == bounds[1::2]).any(-1).to(torch.uint8)
    code = (code | ((y < 0).to(torch.uint8) << 3)).view(*packed.shape[:2], -1)
    return code[..., 0::2] | (code[..., 1::2] << 4), s8


def in_groups(call, experts, size, *stacks):
    for i in range(0, experts, size):
        call(*(stack[i : i + size] for stack in stacks))


def measure(experts, shape, only):
    """Times of all kernels over one stack, or of those whose names have one of some words."""
    n = experts * shape[0] * shape[1]
    packed, scale = realistic(experts, shape, 1)
    top = gpu_blocks.int4_amax(packed, scale)
    int4, nv, mx, bf16 = n * 9 // 16, n * 9 // 16, n * 17 // 32, 2 * n
    made = nvfp4.int4_to_nvfp4(packed, scale, top, quality=False)
    ct = nvfp4.int4_to_nvfp4(packed, scale, top, method="compressed-tensors", quality=False)
    mxf = mxfp4.int4_to_mxfp4(packed, scale, quality=False)
    given = given_scales(made.scale, 2)
    w = gpu_decode.int4_to_bf16(packed, scale)
    out = torch.empty_like(w)
    codes = torch.randint(0, 126, w.shape, dtype=torch.uint8, device="cuda").view(torch.float8_e4m3fn)
    blocks = torch.rand((experts, -(-shape[0] // 128), -(-shape[1] // 128)), device="cuda")
    int4_source, bf16_source = (packed, scale, top), (w, top)
    runs = {
        "INT4 amax": (int4, lambda: gpu_blocks.int4_amax(packed, scale)),
        "BF16 amax": (bf16, lambda: gpu_blocks.bf16_amax(w)),
        "INT4 -> BF16": (int4 + bf16, lambda: gpu_decode.int4_to_bf16(packed, scale, out)),
        "NVFP4 -> BF16": (
            nv + bf16,
            lambda: gpu_decode.nvfp4_to_bf16(made.packed, made.scale, made.tensor_scale, out=out),
        ),
        "NVFP4 (ct) -> BF16": (
            nv + bf16,
            lambda: gpu_decode.nvfp4_to_bf16(ct.packed, ct.scale, ct.tensor_scale, reciprocal=True, out=out),
        ),
        "MXFP4 -> BF16": (mx + bf16, lambda: gpu_decode.mxfp4_to_bf16(mxf.packed, mxf.scale, out)),
        "FP8 blocks -> BF16": (n + bf16, lambda: gpu_decode.fp8_block_to_bf16(codes, blocks, out)),
    }
    for source, name, size, encoder in (
        (int4_source, "INT4", int4, nvfp4.int4_to_nvfp4),
        (bf16_source, "BF16", bf16, nvfp4.bf16_to_nvfp4),
    ):
        for wanted, word in ((False, ""), (True, ", quality")):
            runs[f"{name} -> NVFP4 max{word}"] = (size + nv, lambda s=source, e=encoder, q=wanted: e(*s, quality=q))
            runs[f"{name} -> NVFP4 compressed-tensors{word}"] = (
                size + nv,
                lambda s=source, e=encoder, q=wanted: e(*s, method="compressed-tensors", quality=q),
            )
            runs[f"{name} -> NVFP4 given scales{word}"] = (
                size + nv,
                lambda s=source, e=encoder, q=wanted: e(*s, given=given, quality=q),
            )
    for wanted, word in ((False, ""), (True, ", quality")):
        runs[f"INT4 -> MXFP4{word}"] = (int4 + mx, lambda q=wanted: mxfp4.int4_to_mxfp4(packed, scale, quality=q))
        runs[f"BF16 -> MXFP4{word}"] = (bf16 + mx, lambda q=wanted: mxfp4.bf16_to_mxfp4(w, quality=q))
    result = {
        name: {"bytes": size, "ms": median_ms(call)} for name, (size, call) in runs.items() if wanted_by(only, name)
    }
    return result


def wanted_by(only, name):
    return not only or any(word in name for word in only)


def measure_pytorch(experts, shape):
    """The time of plain PyTorch, eight experts at a time: it needs 60 bytes a weight."""
    packed, scale = realistic(experts, shape, 1)
    top = gpu_blocks.int4_amax(packed, scale)
    ms = median_ms(lambda: in_groups(pytorch_int4_to_nvfp4, experts, 8, packed, scale, top), 3)
    return {"PyTorch: INT4 -> NVFP4 max": {"bytes": experts * shape[0] * shape[1] * 9 // 8, "ms": ms}}


def int4_expert(packed, scale):
    shape = (packed.shape[0], packed.shape[1] * 8)
    return Encoded("int4", shape, {"weight_packed": packed, "weight_scale": scale, "weight_shape": np.int32(shape)})


def cpu_given(source, weight, given, tensor_scale, int4):
    """Codes under given block scales, by the CPU's kernels."""
    out, stats = np.empty((weight.shape[0], weight.shape[1] // 2), np.uint8), np.zeros((weight.shape[0], 4))
    if int4:
        codes, steps = source.tensors["weight_packed"].view(np.uint8), source.tensors["weight_scale"]
        rule = bf16_blocks.NVFP4_GIVEN
        int4_blocks.recode_rows(codes, steps, 32, rule, 16, tensor_scale, out, given.copy(), stats[0])
    else:
        bf16_blocks.encode_rows(weight, bf16_blocks.NVFP4_GIVEN, 16, tensor_scale, out, given.copy(), stats)
    return out


def on_cpu(source, given):
    """Return the CPU codec's output for an INT4 expert: {kernel: arrays or quality}."""
    weight = decode(source, threads=1)
    made = {"INT4 -> BF16": [weight], "INT4 amax": [np.float32([amax(source, threads=1)])]}
    made["BF16 amax"] = made["INT4 amax"]
    tensor_scale = reference.tensor_scale(np.float32(made["INT4 amax"][0][0]))
    for name, stored in (("INT4", source), ("BF16", weight)):
        for format, method, words in (
            ("nvfp4", "max", "NVFP4 max"),
            ("nvfp4_ct", "compressed-tensors", "NVFP4 compressed-tensors"),
            ("mxfp4", None, "MXFP4"),
            ("mxfp4_ct", None, "MXFP4 (ct)"),
        ):
            encoded = encode(stored, format, method=method, threads=1)
            made[f"{name} -> {words}"] = [*encoded.tensors.values(), encoded.quality]
            if name == "INT4":
                made[f"{words} -> BF16"] = [decode(encoded, threads=1)]
        made[f"{name} -> NVFP4 given scales"] = [cpu_given(source, weight, given, tensor_scale, name == "INT4")]
    return made


def on_gpu(packed, scale, given):
    """The same from the kernels, as [tensors [E, ...], sums or None] for each."""
    top = gpu_blocks.int4_amax(packed, scale)
    w = gpu_decode.int4_to_bf16(packed, scale)
    made = {"INT4 -> BF16": ([w], None), "INT4 amax": ([top], None), "BF16 amax": ([gpu_blocks.bf16_amax(w)], None)}
    for method, words in (("max", "NVFP4 max"), ("compressed-tensors", "NVFP4 compressed-tensors")):
        for name, blocks in (
            ("INT4", nvfp4.int4_to_nvfp4(packed, scale, top, method=method)),
            ("BF16", nvfp4.bf16_to_nvfp4(w, top, method=method)),
        ):
            made[f"{name} -> {words}"] = ([blocks.packed, blocks.scale, blocks.tensor_scale], blocks.quality)
        back = gpu_decode.nvfp4_to_bf16(blocks.packed, blocks.scale, blocks.tensor_scale, reciprocal=method != "max")
        made[f"{words} -> BF16"] = ([back], None)
    for spelling, words in (("mxfp4", "MXFP4"), ("mxfp4_ct", "MXFP4 (ct)")):
        for name, blocks in (
            ("INT4", mxfp4.int4_to_mxfp4(packed, scale, keep_negative_zero=spelling == "mxfp4_ct")),
            ("BF16", mxfp4.bf16_to_mxfp4(w, keep_negative_zero=spelling == "mxfp4_ct")),
        ):
            made[f"{name} -> {words}"] = ([blocks.packed, blocks.scale], blocks.quality)
        made[f"{words} -> BF16"] = ([gpu_decode.mxfp4_to_bf16(blocks.packed, blocks.scale)], None)
    made["INT4 -> NVFP4 given scales"] = ([nvfp4.int4_to_nvfp4(packed, scale, top, given=given).packed], None)
    made["BF16 -> NVFP4 given scales"] = ([nvfp4.bf16_to_nvfp4(w, top, given=given).packed], None)
    return made


def plain_bytes(array):
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def compare_expert(i, source, given, host):
    """Differing bytes and the largest relative difference of quality of one expert, for each kernel."""
    found = {}
    with np.errstate(all="ignore"):
        for name, expected in on_cpu(source, given).items():
            arrays, sums = host[name]
            quality = expected.pop() if sums is not None else None
            pairs = zip(arrays, expected, strict=False)
            differing = sum(int((plain_bytes(ours[i]) != plain_bytes(theirs)).sum()) for ours, theirs in pairs)
            found[name] = (differing, *(quality_gap(sums, i, quality) if quality else (0.0, 0)))
    return found


def quality_gap(sums, i, quality):
    """Relative difference of the sums, and how many of the exact numbers differ."""
    gap = 0.0
    for ours, theirs in ((sums[1][i], quality.signal), (sums[2][i], quality.error)):
        same = ours == theirs or (np.isinf(ours) and np.isinf(theirs))
        gap = max(gap, 0.0 if same else float(abs(ours - theirs) / max(abs(theirs), 1e-300)))
    return gap, int(sums[3][i] != quality.max_error) + int(sums[4][i] != quality.saturated)


def to_host(tensor):
    plain = {torch.bfloat16: torch.int16}.get(tensor.dtype)
    target = torch.empty(tensor.shape, dtype=plain or tensor.dtype, pin_memory=True)
    target.copy_(tensor.view(plain) if plain else tensor)
    return target.numpy()


def compare_stack(packed, scale, total, group=32):
    """Compare a stack with the CPU, some experts at a time; sums are added to `total`."""
    for start in range(0, packed.shape[0], group):
        p, s = packed[start : start + group], scale[start : start + group]
        given = given_scales(nvfp4.int4_to_nvfp4(p, s, gpu_blocks.int4_amax(p, s), quality=False).scale, start)
        host = {}
        for name, (arrays, sums) in on_gpu(p, s, given).items():
            on_host = [x.cpu().numpy() if isinstance(x, torch.Tensor) else x for x in sums] if sums else None
            host[name] = ([to_host(a) for a in arrays], on_host)
        hp, hs, hg = to_host(p), to_host(s).view(np.uint16), to_host(given)
        with ThreadPoolExecutor(CORES) as pool:
            jobs = [pool.submit(compare_expert, i, int4_expert(hp[i], hs[i]), hg[i], host) for i in range(len(hp))]
            for job in jobs:
                for name, (differing, gap, exact) in job.result().items():
                    row = total.setdefault(name, {"experts": 0, "differing_bytes": 0, "quality_gap": 0.0, "exact": 0})
                    row["experts"] += 1
                    row["differing_bytes"] += differing
                    row["quality_gap"] = max(row["quality_gap"], gap)
                    row["exact"] += exact


def compare_fp8(experts, shape, total):
    """FP8 blocks with random codes and scales."""
    row = total.setdefault("FP8 blocks -> BF16", {"experts": 0, "differing_bytes": 0, "quality_gap": 0.0, "exact": 0})
    for start in range(0, experts, 32):
        code = torch.randint(0, 256, (32, *shape), dtype=torch.uint8, device="cuda")
        code[(code & 127) == 127] = 3
        blocks = torch.exp(torch.rand((32, -(-shape[0] // 128), -(-shape[1] // 128)), device="cuda") * 120 - 70)
        made = to_host(gpu_decode.fp8_block_to_bf16(code.view(torch.float8_e4m3fn), blocks))
        code, blocks = to_host(code), to_host(blocks)

        def differing(i, code=code, blocks=blocks, made=made):
            tensors = {"weight": code[i], "weight_scale_inv": blocks[i]}
            return int((decode(Encoded("fp8_block", shape, tensors), threads=1) != made[i].view(np.uint16)).sum())

        with ThreadPoolExecutor(CORES) as pool:
            row["differing_bytes"] += sum(pool.map(differing, range(32)))
        row["experts"] += min(32, experts - start)


@triton.jit
def count_differing_quotients(count_ptr, SIZE: tl.constexpr):
    factor = f32_of((127 << 23) | (tl.program_id(0) * SIZE + tl.arange(0, SIZE)))[:, None]
    weight = f32_of((127 << 23) | (tl.arange(0, 128) << 16))[None, :]
    ours = quotient_of(weight, factor, tl.math.div_rn(1.0, factor), 1)
    wrong = (bits_of(ours) != bits_of(tl.math.div_rn(weight, factor))).to(tl.int32)
    tl.atomic_add(count_ptr, tl.sum(tl.sum(wrong, axis=1), axis=0))


def differing_quotients():
    """Over all mantissas of a factor and of a BF16 weight: quotients of `quotient_of` that IEEE division has not."""
    count = torch.zeros(1, dtype=torch.int32, device="cuda")
    count_differing_quotients[((1 << 23) // 64,)](count, 64, enable_fp_fusion=False)
    return int(count.item())


def small():
    """Each kernel once, on shapes that no tile divides."""
    for maker in (realistic, hostile):
        packed, scale = maker(6, (37, 224), 3)
        given = given_scales(nvfp4.int4_to_nvfp4(packed, scale, gpu_blocks.int4_amax(packed, scale)).scale, 4)
        on_gpu(packed, scale, given)
        gpu_decode.int4_to_bf16(packed, scale)
    code = torch.randint(0, 126, (2, 130, 300), dtype=torch.uint8, device="cuda").view(torch.float8_e4m3fn)
    gpu_decode.fp8_block_to_bf16(code, torch.rand((2, 2, 3), device="cuda"))
    torch.cuda.synchronize()
    print("every kernel ran")


def machine():
    query = "name,driver_version,clocks.sm,clocks.max.sm,clocks.mem,temperature.gpu,power.draw"
    command = ["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader"]
    smi = subprocess.run(command, capture_output=True, text=True, check=False)
    return {
        "gpu": torch.cuda.get_device_name(),
        "nvidia_smi": {key: value.strip() for key, value in zip(query.split(","), smi.stdout.split(","), strict=False)},
        "python": platform.python_version(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "date": datetime.date.today().isoformat(),
    }


def table(result):
    lines = [f"# GPU kernels on {result['machine']['gpu']}", "", (__doc__ or "").split("\n\n", 2)[2].strip(), ""]
    made = result["machine"]
    lines.append(f"{made['date']}, torch {made['torch']}, triton {made['triton']}, {json.dumps(made['nvidia_smi'])}.")
    lines += [f"Copy: {result['copy'] / 1e12:.2f} TB/s, read and written.", ""]
    for shape, rows in result["speed"].items():
        lines += [f"## {EXPERTS} experts of {shape}", "", "| kernel | ms | GB/s | of copy |", "|---|---|---|---|"]
        for name, row in rows.items():
            rate = row["bytes"] / row["ms"] * 1e3
            lines.append(f"| {name} | {row['ms']:.2f} | {rate / 1e9:.0f} | {100 * rate / result['copy']:.0f} % |")
        if "PyTorch: INT4 -> NVFP4 max" in rows:
            slow, fast = rows["PyTorch: INT4 -> NVFP4 max"]["ms"], rows["INT4 -> NVFP4 max"]["ms"]
            lines += ["", f"INT4 -> NVFP4 max is {slow / fast:.0f} times as fast as PyTorch."]
        lines.append("")
    lines += ["## Bytes", ""]
    for name, rows in result["bytes"].items():
        lines += [
            f"### {name}",
            "",
            "| kernel | experts | differing bytes | sums | max_error, saturated |",
            "|---|---|---|---|---|",
        ]
        for kernel, row in rows.items():
            if isinstance(row, dict) and "experts" in row:
                gap = f"{row['quality_gap']:.1e}" if row["quality_gap"] else "equal"
                lines.append(
                    f"| {kernel} | {row['experts']} | {row['differing_bytes']} | {gap} | {row['exact']} differ |"
                )
            else:
                lines.append(f"| {kernel} | | {row} | | |")
        lines.append("")
    lines.append(
        f"Quotients over all {1 << 23:,} x 128 mantissas that differ from IEEE division: {result['quotients']}."
    )
    return "\n".join([*lines, ""])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--only", nargs="+", help="measure kernels whose names have one of these words, on one shape")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--warm", action="store_true", help="compile the CPU codec and stop")
    options = parser.parse_args()
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)  # before any work
    if options.small:
        small()
        return
    if options.warm:
        source = encode(np.full((128, 128), 0x3C00, np.uint16), "int4")
        on_cpu(source, np.full((128, 8), 0x38, np.uint8))
        codes = {"weight": np.zeros((128, 128), np.uint8), "weight_scale_inv": np.ones((1, 1), np.float32)}
        decode(Encoded("fp8_block", (128, 128), codes))
        return
    warm = subprocess.Popen([sys.executable, __file__, "--warm"])  # the codec compiles while the GPU is measured
    begin = time.perf_counter()
    result = {"machine": machine(), "only": options.only, "copy": copy_bandwidth(), "speed": {}, "bytes": {}}
    shapes = dict(list(SHAPES.items())[:1]) if options.only else SHAPES
    for shape in dict.fromkeys(shapes.values()):
        rows = measure(EXPERTS, shape, options.only)
        torch.cuda.empty_cache()
        result["speed"][f"{list(shape)}"] = {**rows, **({} if options.only else measure_pytorch(EXPERTS, shape))}
        torch.cuda.empty_cache()
        print(f"{time.perf_counter() - begin:.0f} s", flush=True)
    result["machine_after"] = machine()
    result["quotients"] = differing_quotients()
    warm.wait()
    rows = result["bytes"].setdefault(f"experts on Kimi's grid: {', '.join(shapes)}", {})
    for seed, shape in enumerate(shapes.values()):
        compare_stack(*realistic(EXPERTS, shape, 10 + seed), rows)
        print(f"{time.perf_counter() - begin:.0f} s, {list(rows.items())[-1]}", flush=True)
    compare_fp8(EXPERTS, SHAPES["down"], rows)
    rows = result["bytes"].setdefault("hostile experts", {})
    compare_stack(*hostile(EXPERTS, SHAPES["gate"], 20), rows)
    result["seconds"] = time.perf_counter() - begin
    if options.out:
        options.out.write_text(json.dumps(result, indent=1) + "\n")
        options.out.with_suffix(".md").write_text(table(result))
    print(table(result))


if __name__ == "__main__":
    main()
