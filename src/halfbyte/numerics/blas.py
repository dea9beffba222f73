"""LAPACK on one thread: with another number of them its last bits differ, and bytes must not depend on the cores."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager


@contextmanager
def one_blas_thread() -> Generator[None]:
    """Let NumPy's linear algebra compute on the thread that asks; jobs run side by side anyway."""
    from threadpoolctl import threadpool_limits  # noqa: PLC0415 - looks at every loaded library

    with threadpool_limits(1, user_api="blas"):
        yield
