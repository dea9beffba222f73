"""What each file of an output folder is to those who publish or verify it.

output     what engines and people load: weights, configs, tokenizer, licence
evidence   what stages left below `halfbyte/`
trace      evidence that is long and made of model answers; it has a dataset repository of its own
later      card and report, which are written after provenance.json and from it
local      what says something of this machine only: caches, logs, stamps
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Literal

from halfbyte.ahead import FETCHED
from halfbyte.errors import CheckpointError
from halfbyte.folders import FOLDER, RELEASE_LOGS, SOURCE_README
from halfbyte.known_source import VERIFIED
from halfbyte.pipeline import JOURNAL, STATS
from halfbyte.write import PART

Kind = Literal["output", "evidence", "trace", "later", "local"]

PROVENANCE = "provenance.json"
SBOM = "sbom.cdx.json"  # written with it, and recorded in it
CARD_RECORD = "card.json"  # what the card was written from, to write it again here
CARD_HASH = "readme_sha256"  # in it
HASHED = "hashed.json"  # stamps of files that were hashed here: what does not change is not read again
CARD = "README.md"
REPORT = f"{FOLDER}/report.html"
MOST_EVIDENCE_NBYTES = 1 << 33  # of one file; a file without blocks on the disk can say that it has any size
LATER = frozenset((CARD, REPORT, f"{FOLDER}/{SOURCE_README}"))
_LOCAL = frozenset(f"{FOLDER}/{name}" for name in (PROVENANCE, HASHED, VERIFIED, FETCHED, CARD_RECORD))
_LOCAL_SUFFIXES = (".log", ".lock", ".pid", ".pyc", ".tmp", ".swp", "~")
_LOCAL_FOLDERS = frozenset(("__pycache__", "logs"))
_STATS_KEPT = frozenset(("stats.safetensors", "calibration.json"))  # hidden states beside them are not for ever


def kind(name: str) -> Kind:
    """Return what a file is, by its path relative to the folder."""
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
    """Whether provenance.json has the hash of a file."""
    return kind(name) in ("output", "evidence", "trace")


def files(out: Path) -> dict[str, Path]:
    """Return every file of a folder by its relative name, sorted. Links to folders are not followed."""
    if not out.is_dir():
        raise CheckpointError("there is no such folder", where=str(out), fix="check the path")
    return dict(sorted(_walk(out)))


def _walk(out: Path) -> Iterator[tuple[str, Path]]:
    for folder, inner, names in os.walk(out):
        here = Path(folder)
        inner[:] = [name for name in inner if not name.startswith(".")]
        linked = [name for name in inner if (here / name).is_symlink()]
        for name in (*names, *linked):
            yield (here / name).relative_to(out).as_posix(), here / name


def half_written(out: Path) -> list[str]:
    """Return what a run that still goes on, or was killed, has left unfinished."""
    return [name for name in files(out) if name.endswith(PART)]
