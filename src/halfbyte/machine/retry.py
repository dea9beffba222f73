"""Exponential backoff between the attempts of a retry loop.

Each loop decides for itself which errors are transient and when to stop (a deadline, Ctrl-C, progress), because that
depends on what it calls. Number of attempts and waits are the same arithmetic everywhere.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Backoff:
    """The number of attempts, and the waits between them, which double up to a limit."""

    attempts: int
    first_wait_s: float
    longest_wait_s: float = math.inf

    def wait_s(self, attempt: int, requested_s: float | None = None) -> float:
        """Return the wait after a failed attempt (the first is 1): the server's Retry-After, if it sent one."""
        doubled = self.first_wait_s * 2 ** (attempt - 1)
        return min(doubled if requested_s is None else requested_s, self.longest_wait_s)
