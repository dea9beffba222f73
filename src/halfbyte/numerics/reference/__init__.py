"""The specification: each format in plain NumPy, written to be read. Fast kernels must equal it bit for bit."""
