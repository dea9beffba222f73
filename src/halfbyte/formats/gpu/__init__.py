"""Triton kernels for GPUs: whole stacks of experts in one launch, bit-identical to `formats.reference`.

Import this package only if a GPU is used, because the CPU path does not depend on Triton.
"""
