"""Write texts.json.xz: the real texts that the labelled set is made from.

python -m benchmarks.degeneracy.freeze

They are stored, so that no commit and no other Python changes a number. Written with Python 3.11.7:
- tune: the language reference in pydoc_data.topics, modules of the standard library, our own pages and result files;
- held-out: docstrings and modules of the standard library's packages, our other pages and JSON files.
The standard library is (c) Python Software Foundation, under the PSF License Version 2
(https://docs.python.org/3/license.html); the rest is ours, under the licence of this repository.
"""

import ast
import json
import lzma
import pydoc_data.topics
import sysconfig
from collections.abc import Iterable
from pathlib import Path

from benchmarks.degeneracy.sources import ROOT, STORED

LIBRARY = Path(sysconfig.get_paths()["stdlib"])
LONG = 600
# Characters of one text, and of all of one kind.
SIZES = {
    "documents": (8000, 160_000),
    "modules": (12_000, 130_000),
    "pages": (10_000, 60_000),
    "records": (6000, 40_000),
}
_NOT_TAKEN = {"test", "tests", "idlelib", "site-packages", "dist-packages", "lib2to3", "ensurepip", "pydoc_data"}


def chosen(texts: Iterable[str], kind: str) -> list[str]:
    """Return texts spread over all that there are, each cut, until there are enough."""
    longest, enough = SIZES[kind]
    found = [text[:longest] for text in texts if len(text) > LONG]
    step = max(1, sum(map(len, found)) // enough)
    taken: list[str] = []
    for text in found[::step]:
        if sum(map(len, taken)) < enough:
            taken.append(text)
    return taken


def docstrings(paths: Iterable[Path]) -> Iterable[str]:
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for path in paths:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, documented):
                yield ast.get_docstring(node) or ""


def pages(*patterns: str) -> list[str]:
    paths = sorted({path for pattern in patterns for path in ROOT.glob(pattern)})
    return [path.read_text(encoding="utf-8") for path in paths if "degeneracy" not in path.name]


def records(*patterns: str) -> list[str]:
    return [json.dumps(json.loads(text), indent=1) for text in pages(*patterns)]


def main() -> None:
    packages = [path for path in sorted(LIBRARY.glob("*/*.py")) if path.parent.name not in _NOT_TAKEN]
    topics = [text for _, text in sorted(pydoc_data.topics.topics.items())]
    modules = [path.read_text(encoding="utf-8") for path in sorted(LIBRARY.glob("*.py"))]
    stored = {
        "tune": {
            "documents": topics,
            "modules": modules,
            "pages": pages("*.md", "docs/*.md", "benchmarks/results/*.md"),
            "records": records("benchmarks/results/*.json"),
        },
        "held-out": {
            "documents": docstrings(packages),
            "modules": [path.read_text(encoding="utf-8") for path in packages],
            "pages": pages("*/README.md", "*/*/README.md"),
            "records": records("tests/golden/*.json", "training/results/*.json", "src/halfbyte/*/data/*.json"),
        },
    }
    cut = {part: {kind: chosen(texts, kind) for kind, texts in kinds.items()} for part, kinds in stored.items()}
    cut["licence"] = {"licence": [(ROOT / "LICENSE").read_text(encoding="utf-8")]}
    STORED.write_bytes(lzma.compress(json.dumps(cut, ensure_ascii=False).encode(), preset=9))
    for part, kinds in cut.items():
        print(part, {kind: (len(texts), sum(map(len, texts))) for kind, texts in kinds.items()})
    print(STORED.stat().st_size, "bytes")


if __name__ == "__main__":
    main()
