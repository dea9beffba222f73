"""Quantization methods: how the scales and codes of linears are chosen. One module per method, listed in `registry`."""
