"""Kernels for GPUs, in Triton: whole stacks of experts in one launch, to the bit what `numerics.reference` says.

Import what is here only where a GPU is used: Triton is no dependency of the CPU path.
"""
