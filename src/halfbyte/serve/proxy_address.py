"""The address of a proxy that clients use instead of the engine's own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ProxyAddress:
    """A proxy's URL, and whether the proxy has exited."""

    url: str
    ended: Callable[[], bool] = lambda: False
