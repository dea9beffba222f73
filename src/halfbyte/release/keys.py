"""What a stage is done with, as one hash: where it is the same as before, its result is kept.

Weights are known by their plan and by size and time of change, as audits know them: hashing a terabyte to find out that
nothing is to be done would take an hour. Results are small and hashed.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from halfbyte.audit.seen import files_seen
from halfbyte.folders import FOLDER, PLAN
from halfbyte.json_file import json_object
from halfbyte.publish import contents
from halfbyte.publish.evidence import PLACES
from halfbyte.release.stages import ASKS_SERVER, SERVE, Stage
from halfbyte.write import file_sha256

_WRITTEN = ("README.md", "halfbyte/report.html")  # what a publication takes besides evidence

_LOADED = (".json", ".jinja", ".py", ".model", ".txt", ".tiktoken")
_WORDS_ONLY = re.compile(r"licen[cs]e|copying|notice|readme", re.IGNORECASE)


def digest(value: Any) -> str:
    """Return the SHA-256 of something as JSON."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def result_sha256(path: Path | None) -> str | None:
    """Return the hash of a result; None where there is none."""
    return file_sha256(path) if path is not None and path.is_file() else None


def made_files(out: Path) -> str:
    """Return what tells the files of a checkpoint from those of another.

    A tokenizer or a chat template decides answers as weights do. A licence that somebody adds decides nothing.
    """
    loaded = sorted(path for path in out.glob("*") if path.suffix in _LOADED and not _WORDS_ONLY.match(path.name))
    return digest([files_seen(out), [[path.name, *_stamp(path)[1:]] for path in loaded]])


def plan_of(out: Path) -> str | None:
    """Return the fingerprint of the plan of a folder."""
    found = json_object(out / FOLDER / PLAN).get("fingerprint")
    return found if isinstance(found, str) else None


def key_of(stage: Stage, stages: Sequence[Stage], out: Path, source: Path, recipe: str) -> str:
    """Return the key of a stage. `recipe` is the fingerprint of what decides the checkpoint's bytes."""
    by_name = {one.name: one for one in stages}
    parts: dict[str, Any] = {"stage": stage.name, "words": stage.words, "reads": [_stamp(path) for path in stage.reads]}
    if stage.name == "quantize":
        at = stage.words.index("-r") + 1  # the same recipe under another name makes the same checkpoint
        parts |= {"recipe": recipe, "words": stage.words[:at] + stage.words[at + 1 :]}
    if stage.of_source:
        parts["source"] = files_seen(source)
    if stage.of_weights:
        parts |= {"plan": plan_of(out), "weights": made_files(out)}
    if stage.name in ASKS_SERVER and SERVE in by_name:
        parts["server"] = by_name[SERVE].words
    parts["results"] = {name: _result(by_name.get(name), out) for name in stage.after}
    if stage.name == "provenance":
        recorded = {name: path for name, path in contents.files(out).items() if contents.is_recorded(name)}
        parts["files"] = [[name, *_stamp(path)[1:]] for name, path in recorded.items()]
    if stage.of_evidence:
        parts["evidence"] = _evidence(out, stage.result)
    return digest(parts)


def _result(stage: Stage | None, out: Path) -> str | None:
    return None if stage is None or stage.result is None else result_sha256(out / stage.result)


def _evidence(out: Path, but: str | None) -> Mapping[str, str | None]:
    """Return the hashes of all evidence; what a stage writes itself, and what is written after it, is not among it."""
    files = [f"{FOLDER}/{place.file}" for place in PLACES.values()]
    files += () if but is not None else _WRITTEN  # publishing takes all
    return {name: result_sha256(out / name) for name in files if name != but}


def _stamp(path: Path) -> list[Any]:
    try:
        status = path.stat()
    except OSError:
        return [str(path), None]
    return [str(path), status.st_size, status.st_mtime_ns]
