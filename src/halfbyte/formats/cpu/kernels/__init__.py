"""Numba kernels that match the reference. Each runs on one core without the GIL; callers split rows over threads."""
