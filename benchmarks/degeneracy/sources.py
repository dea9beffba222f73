"""Words and true text for the labelled set, stored in texts.json.xz: freeze.py lists their origins.

Every labelled text is made from a seed when it is asked for. The tuning part and the held-out part read different
documents.
"""

import json
import lzma
import random
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
STORED = Path(__file__).with_name("texts.json.xz")


@dataclass(frozen=True, slots=True)
class Labelled:
    """A text, what family made it, whether it loops, and what kind of text its reader would call it."""

    text: str
    family: str
    loops: bool
    kind: str


@cache
def _stored() -> dict[str, dict[str, list[str]]]:
    return json.loads(lzma.decompress(STORED.read_bytes()))


def documents(part: str) -> list[str]:
    """Return documentation as prose."""
    return _stored()[part]["documents"]


def modules(part: str) -> list[str]:
    """Return source code."""
    return _stored()[part]["modules"]


def pages(part: str) -> list[str]:
    """Return Markdown."""
    return _stored()[part]["pages"]


def records(part: str) -> list[str]:
    """Return JSON."""
    return _stored()[part]["records"]


def licence() -> str:
    return _stored()["licence"]["licence"][0]


@cache
def sentences(part: str) -> tuple[str, ...]:
    text = " ".join(" ".join(document.split()) for document in documents(part))
    found = dict.fromkeys(re.findall(r"[A-Z][a-z][^.!?]{20,160}[.!?]", text))
    return tuple(one for one in found if one.isascii() and "*" not in one)


@cache
def vocabulary(part: str) -> tuple[str, ...]:
    return tuple(sorted({word for one in sentences(part) for word in re.findall(r"\b[a-z]{3,10}\b", one)}))


def slice_of(rng: random.Random, texts: list[str], low: int = 400, high: int = 8000) -> str:
    """Return a part of one of the texts, from a line's beginning."""
    text = rng.choice(texts)
    start = text.rfind("\n", 0, rng.randrange(max(1, len(text) - low))) + 1
    return text[start : start + rng.randint(low, high)]


def phrase(rng: random.Random, part: str, low: int, high: int) -> str:
    return " ".join(rng.choice(vocabulary(part)) for _ in range(rng.randint(low, high)))


def prose(rng: random.Random, part: str, characters: int) -> str:
    """Return sentences, none of them twice."""
    found: list[str] = []
    for one in rng.sample(sentences(part), len(sentences(part)) // 2):
        if sum(map(len, found)) >= characters:
            break
        found.append(one)
    return " ".join(found)[:characters]
