"""Numba kernels: the reference, fast. One core each and without the GIL; the caller splits rows over threads."""
