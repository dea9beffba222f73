"""CPU codecs: check stored tensors, decode them to BF16 rows and encode rows, with the numba kernels of `kernels/`."""
