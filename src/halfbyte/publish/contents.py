"""Classify the files of an output folder for publishing and verification.

output     weights, configs, tokenizer, license
evidence   results of stages under `halfbyte/`
trace      long evidence that consists of model answers, published in a separate dataset repository
later      card and report, written after provenance.json
local      caches, logs and stamps of this machine, never published
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Literal

from halfbyte.checkpoint.atomic_write import PART
from halfbyte.checkpoint.output_folder import (
    FOLDER,
    HASHED,
    RELEASE_LOGS,
    SOURCE_README,
    VERIFIED,
)
from halfbyte.engine.pipeline import JOURNAL, STATS
from halfbyte.engine.prefetch import FETCHED
from halfbyte.errors import CheckpointError

Kind = Literal["output", "evidence", "trace", "later", "local"]

PROVENANCE = "provenance.json"
SBOM = "sbom.cdx.json"  # written with provenance.json, and recorded in it
CARD_RECORD = "card.json"  # inputs of the card, to regenerate it
CARD_HASH = "readme_sha256"  # key in card.json
CARD_EVIDENCE = "evidence_sha256"  # key in card.json: the hash of each evidence file behind the card
CARD = "README.md"
REPORT = f"{FOLDER}/report.html"
MOST_EVIDENCE_NBYTES = 1 << 33  # per file; a sparse file can claim any size
LATER = frozenset((CARD, REPORT, f"{FOLDER}/{SOURCE_README}"))
_LOCAL = frozenset(f"{FOLDER}/{name}" for name in (PROVENANCE, HASHED, VERIFIED, FETCHED, CARD_RECORD))
_LOCAL_SUFFIXES = (".log", ".lock", ".pid", ".pyc", ".tmp", ".swp", "~")
_LOCAL_FOLDERS = frozenset(("__pycache__", "logs"))
_STATS_KEPT = frozenset(("stats.safetensors", "calibration.json"))  # the hidden states next to them are temporary


def kind(name: str) -> Kind:
    """Return the kind of a file from its path relative to the folder."""
    path = PurePosixPath(name)
    hidden = any(part.startswith(".") for part in path.parts)
    if name in LATER:
        return "later"
    if hidden or name in _LOCAL or path.name.endswith(_LOCAL_SUFFIXES) or _LOCAL_FOLDERS & set(path.parts):
        return "local"
    if path.parts[0] != FOLDER:
        return "output"
    if path.parts[1] == RELEASE_LOGS or (path.parts[1] == STATS and path.name not in _STATS_KEPT):
        return "local"
    if path.suffix == ".jsonl" and path.name != JOURNAL:
        return "trace"
    return "evidence"


def is_recorded(name: str) -> bool:
    """Whether provenance.json records the hash of a file."""
    return kind(name) in ("output", "evidence", "trace")


def files(out: Path) -> dict[str, Path]:
    """Return every file of a folder by its relative name, sorted. Symlinks to folders are not followed."""
    if not out.is_dir():
        raise CheckpointError("no such folder", where=str(out), fix="check the path")
    return dict(sorted(_walk(out)))


def _walk(out: Path) -> Iterator[tuple[str, Path]]:
    for folder, inner, names in os.walk(out):
        here = Path(folder)
        inner[:] = [name for name in inner if not name.startswith(".")]
        linked = [name for name in inner if (here / name).is_symlink()]
        for name in (*names, *linked):
            yield (here / name).relative_to(out).as_posix(), here / name


def half_written(out: Path) -> list[str]:
    """Return the partial files of a running or interrupted run."""
    return [name for name in files(out) if name.endswith(PART)]
