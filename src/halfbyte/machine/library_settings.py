"""Settings of libraries: environment variables that they read once, and the threads of linear algebra.

Nothing is set on import. A variable that the user has set stays as it is.
"""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import contextmanager

ONEDNN_ISA = "ONEDNN_MAX_CPU_ISA"


def limit_onednn() -> None:
    """Make oneDNN add in the same order with and without AMX, and keep its cache of kernels small.

    Call it before the first matrix product. It also protects virtual machines that report AMX and trap its
    instructions. The cache holds 1,024 shapes by default, about 100 MB, and almost every expert has its own shape.
    """
    os.environ.setdefault(ONEDNN_ISA, "AVX512_CORE_BF16")
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "64")


def allow_expandable_segments() -> None:
    """Let PyTorch reuse GPU memory across streams; without it a run takes a third more. Call it before CUDA starts."""
    for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):  # the current name and the older one
        os.environ.setdefault(name, "expandable_segments:True")


@contextmanager
def one_blas_thread() -> Generator[None]:
    """Restrict NumPy's linear algebra to the calling thread; jobs run in parallel anyway.

    The results of LAPACK depend on the number of threads in the last bits.
    """
    from threadpoolctl import threadpool_limits  # noqa: PLC0415 - slow: inspects every loaded library

    with threadpool_limits(1, user_api="blas"):
        yield
