"""Execution backends: local threads, GPUs, or a Ray cluster."""
