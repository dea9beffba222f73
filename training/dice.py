"""Random choices that give the same on every Python: only methods of random.Random that never changed."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import TypeVar

Choice = TypeVar("Choice")


def chance(rng: random.Random, probability: float) -> bool:
    """Return true with this probability."""
    return rng.random() < probability


def weighted(rng: random.Random, shares: Mapping[Choice, float]) -> Choice:
    """Return one key, as often as its share of all shares says."""
    left = rng.random() * sum(shares.values())
    for choice, share in shares.items():
        left -= share
        if left < 0:
            return choice
    return choice  # rounding left a rest


def between(rng: random.Random, low: int, high: int) -> int:
    """Return a whole number from low to high, both included."""
    return rng.randrange(low, high + 1)
