"""Reference implementation of each format in plain NumPy. Optimized kernels must match it bit for bit."""
