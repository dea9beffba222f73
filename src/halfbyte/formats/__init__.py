"""Number formats with bit-exact arithmetic.

Each format has a module that declares a `Format` (format.py); registry.py lists them. reference/ is a readable NumPy
implementation, cpu/ and gpu/ contain optimized kernels that match it bit for bit, and codec.py encodes and decodes
whole linears.
"""
