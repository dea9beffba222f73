"""Cache keys of stages: a stage whose key is unchanged keeps its result.

The output is identified by the hashes of its files, each read once (hashing.py), so a copied folder keeps its stages.
The source is identified by sizes and modification times, because hashing it would take an hour.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from halfbyte.checkpoint.hashing import Stamps, file_sha256
from halfbyte.checkpoint.output_folder import FOLDER, PLAN
from halfbyte.checkpoint.untrusted_files import json_object
from halfbyte.evidence.folder import KINDS
from halfbyte.evidence.measured_files import content, decides_weights, measured_paths
from halfbyte.options.serve import URL_COMMANDS
from halfbyte.publish.provenance import hash_output
from halfbyte.release.stages import SERVE, Stage

_WRITTEN = ("README.md", "halfbyte/report.html")  # published in addition to evidence


def digest(value: Any) -> str:
    """Return the SHA-256 of a value serialized as JSON."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def result_sha256(path: Path | None) -> str | None:
    """Return the SHA-256 of a result, or None if the file does not exist."""
    return file_sha256(path) if path is not None and path.is_file() else None


def made_files(out: Path) -> str:
    """Return a digest of the files of a checkpoint."""
    return digest(content(out) if out.is_dir() else {})


def plan_of(out: Path) -> str | None:
    """Return the fingerprint of a folder's plan."""
    fingerprint = json_object(out / FOLDER / PLAN).get("fingerprint")
    return fingerprint if isinstance(fingerprint, str) else None


def key_of(stage: Stage, stages: Sequence[Stage], out: Path, source: Path, recipe: str) -> str:
    """Return the key of a stage. `recipe` is the fingerprint of the recipe parts that affect the output bytes."""
    by_name = {other.name: other for other in stages}
    parts: dict[str, Any] = {"stage": stage.name, "words": stage.words, "reads": [_stamp(path) for path in stage.reads]}
    if stage.name == "quantize":
        at = stage.words.index("-r") + 1  # the recipe's name does not affect the checkpoint
        parts |= {"recipe": recipe, "words": stage.words[:at] + stage.words[at + 1 :]}
    if stage.of_source:
        parts["source"] = [_stamp(path)[1:] for path in measured_paths(source).values() if decides_weights(path.name)]
    if stage.of_weights:
        parts |= {"plan": plan_of(out), "weights": made_files(out)}
    if stage.name in URL_COMMANDS and SERVE in by_name:
        parts["server"] = by_name[SERVE].words
    parts["results"] = {name: _result(by_name.get(name), out) for name in stage.after}
    if stage.name == "provenance":
        stamps = Stamps(out)
        parts["files"] = {name: hashed.sha256 for name, hashed in hash_output(out, stamps).items()}
        stamps.save()
    if stage.of_evidence:
        parts["evidence"] = _evidence(out, stage.result)
    return digest(parts)


def _result(stage: Stage | None, out: Path) -> str | None:
    return None if stage is None or stage.result is None else result_sha256(out / stage.result)


def _evidence(out: Path, result: str | None) -> Mapping[str, str | None]:
    """Return the hashes of all evidence except a stage's own result; without a result, of card and report too."""
    files = [f"{FOLDER}/{kind.file}" for kind in KINDS.values()]
    files += () if result is not None else _WRITTEN  # `publish` has no result and sends everything
    return {name: result_sha256(out / name) for name in files if name != result}


def _stamp(path: Path) -> list[Any]:
    try:
        status = path.stat()
    except OSError:
        return [str(path), None]
    return [str(path), status.st_size, status.st_mtime_ns]
