"""Time a peer's own conversion of one expert matrix; run by bench_numerics.py with the peer's Python.

    python bench_peers.py modelopt|compressed-tensors|quark ROWS COLUMNS THREADS

Uses the calls of tests/golden, which are known to give the peer's bytes. Prints one JSON object: operation -> seconds.
"""

import json
import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "golden"))
os.environ.setdefault("ATEN_CPU_CAPABILITY", "avx512")  # timed as installed, unlike the golden runs

import inputs
import torch

SWEEP_ROWS = 16  # ModelOpt's sweep takes minutes for a whole matrix; its time is linear in rows


def best(call, repeats):
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return min(times)


def compressed_tensors(weights, packed, scale):
    import make_compressed_tensors as peer

    peer.DECODED = ()  # time the writer alone
    return {
        "INT4 -> BF16": best(lambda: peer.decode_int4(packed, scale), 3),
        "BF16 -> NVFP4 max": best(lambda: peer.compress_one("nvfp4", weights), 2),
        "BF16 -> MXFP4": best(lambda: peer.compress_one("mxfp4", weights), 2),
    }


def modelopt(weights, packed, scale):
    import make_modelopt as peer
    import modelopt.torch.quantization as mtq
    from modelopt.torch.quantization import tensor_quant

    peer.dequantize = lambda layer: None  # time the writer alone
    tensor_quant.triton_kernel.IS_AVAILABLE = True
    tensor_quant.triton_kernel.static_blockwise_fp4_fake_quant = peer.fake_quantize_on_cpu
    few = weights[:SWEEP_ROWS]
    swept = best(lambda: peer.export({"down_proj": few}, mtq.NVFP4_W4A4_WEIGHT_MSE_FP8_SWEEP_CFG), 1)
    return {
        "BF16 -> NVFP4 max": best(lambda: peer.export({"down_proj": weights}, mtq.NVFP4_DEFAULT_CFG), 2),
        "BF16 -> NVFP4 mse": swept * len(weights) / SWEEP_ROWS,
    }


def quark(weights, packed, scale):
    import make_quark as peer
    import record

    bf16 = {"layers.0.weight": record.bf16_tensor(weights)}
    int4 = {f"layers.0.{name}": tensor for name, tensor in peer.int4_layer(packed, scale).items()}
    return {
        "BF16 -> MXFP4": best(lambda: peer.quantize_checkpoint(bf16, peer.BF16_CONFIG), 2),
        "INT4 -> MXFP4": best(lambda: peer.quantize_checkpoint(int4, peer.INT4_CONFIG), 2),
    }


PEERS = {"compressed-tensors": compressed_tensors, "modelopt": modelopt, "quark": quark}


def main():
    name, rows, columns, threads = sys.argv[1], *map(int, sys.argv[2:5])
    torch.set_num_threads(threads)
    codes, scale = inputs.kimi_grid(inputs.gaussian(172, (rows, columns)))
    times = PEERS[name](inputs.decode_int4(codes, scale), inputs.pack_int4(codes), scale)
    print("\n" + json.dumps(times))


if __name__ == "__main__":
    main()
