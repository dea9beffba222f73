"""Quantization methods: activation scales and GPTQ error compensation."""
