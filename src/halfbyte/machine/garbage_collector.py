"""Pause Python's cyclic garbage collector while many long-lived objects are created."""

from __future__ import annotations

import gc
from collections.abc import Generator
from contextlib import contextmanager


@contextmanager
def paused() -> Generator[None]:
    """Disable the collector in this context, then move all objects to the oldest generation.

    Reading the headers of 208,550 tensors takes 1.8 s with it paused, 2.9 s without. Without the move, the next
    allocation would trigger a scan of all the new objects.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.unfreeze()  # moves them from the permanent to the oldest generation
        gc.enable()
