"""Which domains are learned, and how much of each: the one table of shares.

Shares count tokens, not samples: a haystack of 4,000 tokens weighs as much as twenty sums. All tokens count, also those
that are only read, such as questions. The domain that is furthest behind its share comes next, so every stretch of
training has the whole mixture.
"""

from __future__ import annotations

import importlib
import pkgutil
import random
from collections.abc import Callable, Iterator
from functools import lru_cache
from types import ModuleType

from training import domains
from training.chat import pieces
from training.sample import Item, Sample

# A domain that is not named here gets DEFAULT_SHARE.
SHARES: dict[str, float] = {
    "word_problems": 30,
    "world": 40,  # the largest: three of four tokens are only read, since of multiple choice the letters are learned
    "tools": 12,
    "structured": 8,
    "copying": 40,
    "needle": 12,
    "programs": 9,
    "stories": 5,
}
DEFAULT_SHARE = 8.0


@lru_cache(maxsize=1)
def modules() -> dict[str, ModuleType]:
    """Return every domain's module by its name."""
    names = sorted(found.name for found in pkgutil.iter_modules(domains.__path__) if not found.name.startswith("_"))
    found = [importlib.import_module(f"training.domains.{name}") for name in names]
    return {module.DOMAIN: module for module in found if hasattr(module, "train_sample")}


def shares() -> dict[str, float]:
    """Return the share of each domain that exists; they add up to 1."""
    wanted = {name: SHARES.get(name, DEFAULT_SHARE) for name in modules()}
    return {name: share / sum(wanted.values()) for name, share in wanted.items()}


def schedule(length_of: Callable[[Sample], int], rng: random.Random, total: int) -> Iterator[Sample]:
    """Yield samples until their lengths add up to `total`, each domain in its share."""
    wanted = shares()
    learned = modules()
    # A random start keeps short stretches from all beginning with the same domain.
    behind = {name: wanted[name] * rng.random() * 2000 for name in wanted}
    done = 0
    while done < total:
        name = max(behind, key=behind.__getitem__)
        sample = learned[name].train_sample(rng)
        yield sample
        length = length_of(sample)
        done += length
        for other, share in wanted.items():
            behind[other] += share * length
        behind[name] -= length


def samples(rng: random.Random, characters: int) -> Iterator[Sample]:
    """Yield a mixture by characters, for whoever has no tokens yet."""
    yield from schedule(lambda sample: sum(len(piece.text) for piece in pieces(sample)), rng, characters)


def test_items(count: int, seed: int = 0) -> dict[str, list[Item]]:
    """Return held-out items of every domain."""
    return {name: module.test_items(count, seed) for name, module in modules().items()}
