"""Number formats with bit-exact arithmetic.

registry.py describes each format. reference/ is a readable NumPy implementation, cpu/ and gpu/ contain optimized
kernels that match it bit for bit, and codec.py encodes and decodes whole linears.
"""
