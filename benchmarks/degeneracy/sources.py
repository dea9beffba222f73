"""Words and true text for the labelled set: the standard library's documentation and code, and our own pages.

Every text is made from a seed when it is asked for; nothing is stored. The tuning part and the held-out part read
different documents.
"""

import json
import pydoc_data.topics
import random
import re
import sysconfig
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PARTS = ("tune", "held-out")


@dataclass(frozen=True, slots=True)
class Labelled:
    """A text, what family made it, whether it loops, and what kind of text its reader would call it."""

    text: str
    family: str
    loops: bool
    kind: str


@cache
def documents(part: str) -> tuple[str, ...]:
    """Return documentation as prose, half of the topics for each part."""
    found = [text for _, text in sorted(pydoc_data.topics.topics.items()) if len(text) > 600]
    return tuple(found[PARTS.index(part) :: 2])


@cache
def modules(part: str) -> tuple[str, ...]:
    """Return source files of the standard library."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    names = [path for path in sorted(folder.glob("*.py")) if path.stat().st_size > 4000]
    return tuple(path.read_text(encoding="utf-8") for path in names[PARTS.index(part) :: 2])


@cache
def pages(part: str) -> tuple[str, ...]:
    """Return our own Markdown."""
    found = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *_results("md")])
    return tuple(path.read_text(encoding="utf-8") for path in found[PARTS.index(part) :: 2])


@cache
def records(part: str) -> tuple[str, ...]:
    """Return our own JSON."""
    found = _results("json")
    return tuple(json.dumps(json.loads(path.read_text()), indent=1) for path in found[PARTS.index(part) :: 2])


def _results(ending: str) -> list[Path]:
    """All but what is measured with them."""
    return [path for path in sorted(ROOT.glob(f"benchmarks/results/*.{ending}")) if "degeneracy" not in path.name]


@cache
def sentences(part: str) -> tuple[str, ...]:
    text = " ".join(" ".join(document.split()) for document in documents(part))
    return tuple(one for one in re.findall(r"[A-Z][a-z][^.!?]{20,160}[.!?]", text) if one.isascii() and "*" not in one)


@cache
def vocabulary(part: str) -> tuple[str, ...]:
    return tuple(sorted({word for one in sentences(part) for word in re.findall(r"\b[a-z]{3,10}\b", one)}))


def slice_of(rng: random.Random, texts: tuple[str, ...], low: int = 400, high: int = 8000) -> str:
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
