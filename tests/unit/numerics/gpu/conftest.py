"""Kernels run in Triton's interpreter where there is no GPU, and compiled where there is one.

Triton decides it when a kernel is decorated, so its variable is set while Triton and the kernels are imported, and
while a test of this folder runs; no other test sees it.
"""

import importlib
import os
import pkgutil
import sys

import pytest
import torch

INTERPRET = "TRITON_INTERPRET"
INTERPRETED = not torch.cuda.is_available()


def _import_kernels():
    """Import every module of the package, so that no kernel is decorated later, without the variable."""
    package = importlib.import_module("halfbyte.numerics.gpu")
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"halfbyte.numerics.gpu.{module.name}")


def _forget_compiled_triton():
    """Triton's own functions are kernels too: what was imported without the variable is imported again."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "triton"]:
        if not name.startswith("triton._C"):  # the compiled library stays: it cannot be loaded twice
            del sys.modules[name]


if INTERPRETED:
    before = os.environ.get(INTERPRET)
    if before != "1":
        _forget_compiled_triton()
    os.environ[INTERPRET] = "1"
    try:
        _import_kernels()
    finally:
        if before is None:
            del os.environ[INTERPRET]
        else:
            os.environ[INTERPRET] = before


@pytest.fixture(autouse=True)
def interpreted(monkeypatch):
    """Keep the variable set while a kernel runs: Triton reads it there, too."""
    if INTERPRETED:
        monkeypatch.setenv(INTERPRET, "1")


@pytest.fixture(scope="session")
def device():
    """Return the device that kernels run on."""
    return torch.device("cpu" if INTERPRETED else "cuda")
