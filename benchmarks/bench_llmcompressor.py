"""llm-compressor's own file-to-file conversion of an INT4 checkpoint; run by bench_engine.py with that peer's Python.

    python bench_llmcompressor.py SOURCE OUT NVFP4A16|MXFP4A16 WORKERS

Dequantizes and quantizes shard by shard in one call (`model_free_ptq` with compressed-tensors' dequantizer), the
fastest way that llm-compressor 0.14 offers without a GPU. Prints its version.
"""

import os
import sys

import llmcompressor
import torch
from compressed_tensors.entrypoints.convert import CompressedTensorsDequantizer
from llmcompressor import model_free_ptq

IGNORE = ["re:.*lm_head.*", "re:.*self_attn.*", "re:.*shared_experts.*", "re:.*mlp.gate$", "re:.*layers\\.0\\..*"]
IGNORE += ["re:.*norm.*", "re:.*embed_tokens.*", "re:vision_tower.*", "re:mm_projector.*"]


def main():
    source, out, scheme, workers = sys.argv[1:]
    torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // int(workers)))
    decode = CompressedTensorsDequantizer(source)
    model_free_ptq(source, out, scheme=scheme, ignore=IGNORE, max_workers=int(workers), device="cpu", converter=decode)
    print(llmcompressor.__version__)


if __name__ == "__main__":
    main()
