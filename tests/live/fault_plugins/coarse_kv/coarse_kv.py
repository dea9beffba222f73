"""A vLLM plugin that rounds the KV cache coarsely, to simulate a KV dtype with too few levels.

vLLM's CPU attention has no smaller KV dtype. Every value is rounded to the nearest of 2 * LEVELS + 1 multiples of a
step, which is the same for the whole tensor, as with an integer type without block scales. The folder is put on
PYTHONPATH; vLLM finds the entry point in it.
"""

import os

LEVELS = float(os.environ.get("COARSE_KV_LEVELS", "2"))


def register() -> None:
    """Round cached values."""
    from vllm.v1.attention.backends.mla.cpu_mla import CPUMLAImpl

    write = CPUMLAImpl.do_kv_cache_update

    def rounded(values):
        step = (values.abs().amax() / LEVELS).clamp_min(1e-30)
        return (values / step).round() * step

    def update(self, kv_c_normed, k_pe, *rest):
        write(self, rounded(kv_c_normed), rounded(k_pe), *rest)

    CPUMLAImpl.do_kv_cache_update = update
