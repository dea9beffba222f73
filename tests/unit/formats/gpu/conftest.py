"""Run kernels in Triton's interpreter without a GPU, compiled otherwise.

Triton decides when a kernel is decorated, so its variable is set while Triton and the kernels are imported, and while a
test of this folder runs; other tests are not affected.
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
    """Import every module of the package, so that no kernel is decorated later without the variable."""
    package = importlib.import_module("halfbyte.formats.gpu")
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"halfbyte.formats.gpu.{module.name}")


def _forget_compiled_triton():
    """Reimport Triton's own functions, which are kernels too, with the variable set."""
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
    """Keep the variable set while a kernel runs, because Triton reads it then too."""
    if INTERPRETED:
        monkeypatch.setenv(INTERPRET, "1")


@pytest.fixture(scope="session")
def device():
    """Return the device of the kernels."""
    return torch.device("cpu" if INTERPRETED else "cuda")
