"""Tie measurements to the files they were made on, by SHA-256.

Every result in an output folder (audit, compare, loops, probe, eval, bench, release) lists the hashes of the files that
it was measured on. It counts as evidence while these files are unchanged, regardless of location and modification time.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from halfbyte.checkpoint.folder import CONFIG, INDEX
from halfbyte.checkpoint.hashing import Stamps, Watch, hash_files
from halfbyte.checkpoint.output_folder import FOLDER
from halfbyte.checkpoint.untrusted_files import MOST_NBYTES
from halfbyte.errors import CheckpointError
from halfbyte.options.serve import URL_COMMANDS
from halfbyte.plan.quantization_config import MODELOPT_FILE

MEASURED = "measured_files"  # the key in a result: the name of each file and its SHA-256
FOLDER_NAME = "measured_folder"  # the key in a server's result: the folder's name, which a server may report
_WEIGHTS = ".safetensors"
_FORMATS = (CONFIG, INDEX, MODELOPT_FILE)
_LOADED = (".json", ".jinja", ".py", ".model", ".tiktoken")  # tokenizer, chat template, sampling, model code
_VOCABULARY = ("merges.txt", "vocab.txt")
_DOCUMENTS = re.compile(r"licen[cs]e|copying|notice|readme", re.IGNORECASE)


def decides_weights(name: str) -> bool:
    """Whether engines read weights or formats from a file."""
    return name.endswith(_WEIGHTS) or name in _FORMATS


def measured_paths(folder: Path) -> dict[str, Path]:
    """Return the files that affect the answers of a server of this checkpoint; not licenses or documents."""
    paths = {path.name: path for path in folder.iterdir() if path.is_file() and _decides_answers(path)}
    return dict(sorted(paths.items()))


def _decides_answers(path: Path) -> bool:
    if decides_weights(path.name) or path.name in _VOCABULARY:
        return True
    return path.suffix in _LOADED and _DOCUMENTS.match(path.name) is None


def content(folder: Path, watch: Watch | None = None) -> dict[str, str]:
    """Return the SHA-256 of each measured file, reading only files without a cached hash.

    Raise CheckpointError if a file other than a shard is too large. Shard sizes are not checked: commands that read
    untrusted folders check the headers first.
    """
    stamps = Stamps(folder)
    known = stamps.outputs()
    paths = measured_paths(folder)
    for name, path in paths.items():
        if not name.endswith(_WEIGHTS) and path.stat().st_size > MOST_NBYTES:
            what = f"'{name}' is larger than {MOST_NBYTES >> 20} MiB"
            raise CheckpointError(what, where=str(folder), fix="download it again")
    try:
        hashes = hash_files(paths, known, watch=watch, keep=stamps.keep("outputs"))
    finally:
        if {name: stamp for name, (stamp, _) in stamps.outputs().items()} != {
            n: stamp for n, (stamp, _) in known.items()
        }:
            stamps.save()  # also after Ctrl-C
    return {name: hashed.sha256 for name, hashed in hashes.items()}


def unread_nbytes(folder: Path) -> int:
    """Return the number of bytes that `content` has to read."""
    known = Stamps(folder).outputs()
    statuses = {name: path.stat() for name, path in measured_paths(folder).items()}
    return sum(status.st_size for name, status in statuses.items()
               if name not in known or not known[name][0].fits(status))  # fmt: skip


def output_of(path: Path) -> Path | None:
    """Return the checkpoint folder OUT of a result in OUT/halfbyte/probe, eval or bench; None for other paths."""
    folder = path.absolute().parent
    out = folder.parent.parent
    return out if folder.name in URL_COMMANDS and folder.parent.name == FOLDER and (out / CONFIG).is_file() else None


def measured_on(path: Path) -> dict[str, Any]:
    """Return the entries that tie a result at `path` to its checkpoint; empty for paths outside a checkpoint."""
    out = output_of(path)
    return {} if out is None else {**measured_in(out), FOLDER_NAME: out.resolve().name}


def measured_in(folder: Path, watch: Watch | None = None) -> dict[str, Any]:
    """Return the entry that ties a result to the checkpoint in this folder; empty if a file cannot be read."""
    try:
        return {MEASURED: content(folder, watch)}
    except (CheckpointError, OSError):
        return {}


def changed_file(before: Mapping[str, str], now: Mapping[str, str], *, weights_only: bool) -> str | None:
    """Return the first file that changed since a measurement on the files `before`, or None."""
    names = sorted({*before, *now}, key=lambda name: (not decides_weights(name), name))
    matter = [name for name in names if decides_weights(name) or not weights_only]
    return next((name for name in matter if before.get(name) != now.get(name)), None)
