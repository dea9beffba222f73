"""Run LAPACK on one thread, because its results depend on the number of threads in the last bits."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager


@contextmanager
def one_blas_thread() -> Generator[None]:
    """Restrict NumPy's linear algebra to the calling thread; jobs run in parallel anyway."""
    from threadpoolctl import threadpool_limits  # noqa: PLC0415 - slow: inspects every loaded library

    with threadpool_limits(1, user_api="blas"):
        yield
