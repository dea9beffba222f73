"""What stands before an engine: where its clients ask, and whether nobody listens there any more."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Front:
    """A URL that is said and handed on in place of the engine's own."""

    url: str
    ended: Callable[[], bool] = lambda: False
