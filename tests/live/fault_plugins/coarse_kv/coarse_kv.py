"""A vLLM plugin that keeps two bits of mantissa of what it writes into the KV cache: a KV dtype that is too coarse.

vLLM's attention for CPUs has no smaller KV dtype, so that the fault has to be made. The folder is put on PYTHONPATH;
vLLM finds the entry point beside it.
"""


def register() -> None:
    """Round what is cached."""
    import torch
    from vllm.v1.attention.backends.mla.cpu_mla import CPUMLAImpl

    write = CPUMLAImpl.do_kv_cache_update

    def rounded(values):
        step = torch.exp2(torch.floor(torch.log2(values.abs().clamp_min(1e-30))) - BITS)
        return torch.round(values / step) * step

    def update(self, kv_c_normed, k_pe, *rest):
        write(self, rounded(kv_c_normed), rounded(k_pe), *rest)

    CPUMLAImpl.do_kv_cache_update = update


BITS = 1
