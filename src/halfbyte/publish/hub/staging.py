"""Stage the files of an upload: weights and model files unchanged, evidence with local paths redacted.

Evidence is copied in memory, and local paths in it become relative or bare names. The originals are unchanged, weights
are never copied, and nothing is written to the folder. The published provenance lists the uploaded files and the
original hashes of redacted ones.

In traces, which contain model answers, only this machine's own folders are replaced. Secrets are never redacted: they
must be revoked, so `checks` rejects them.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from halfbyte.checkpoint.hashing import Hash, file_sha256
from halfbyte.checkpoint.headers import METADATA, read_raw_header
from halfbyte.checkpoint.output_folder import FOLDER, PLAN, REDACTED
from halfbyte.errors import CheckpointError
from halfbyte.evidence.provenance import OutputFile, Provenance, Published
from halfbyte.publish import contents
from halfbyte.publish.contents import CARD, PROVENANCE
from halfbyte.publish.hub.secrets import LOCAL_PATH, host_pattern, telling_host, within
from halfbyte.publish.provenance import as_bytes

MOST_TEXT_NBYTES = 1 << 28
_TENSORS = ".safetensors"
_BINARY = (_TENSORS, ".bin", ".pt", ".png", ".jpg", ".jpeg", ".gif", ".webp", ".pdf", ".npz", ".npy")
_HOST = "HOST"


@dataclass(frozen=True, slots=True)
class Sent:
    """A file to upload: bytes in memory, or a path that is read during the upload."""

    name: str
    nbytes: int
    sha256: str
    path: Path | None = None
    data: bytes | None = None

    def read(self) -> bytes:
        """Return the whole contents; not for weights."""
        if self.data is not None:
            return self.data
        assert self.path is not None
        return self.path.read_bytes()


@dataclass(frozen=True, slots=True)
class Staged:
    """The files of an upload, by target repository."""

    model: tuple[Sent, ...]
    traces: tuple[Sent, ...]
    redacted: Mapping[str, str]  # file -> SHA-256 before redaction
    stays: tuple[str, ...]  # files that are not uploaded


def is_text(name: str) -> bool:
    """Whether a file is a text file, by its name."""
    return not name.endswith(_BINARY)


def metadata_text(sent: Sent) -> str:
    """Return the metadata of a safetensors file, one entry per line; empty for other files.

    Metadata is free text and is published with the file.
    """
    if not sent.name.endswith(_TENSORS) or sent.path is None:
        return ""
    raw, _ = read_raw_header(sent.path, sent.name)
    try:
        metadata: Any = json.loads(raw).get(METADATA)
    except (ValueError, AttributeError, RecursionError):
        raise CheckpointError("the header is not JSON", where=str(sent.path), fix="create the file again") from None
    entries = cast("dict[str, Any]", metadata).items() if isinstance(metadata, dict) else ()
    return "\n".join(f"{key}: {value}" for key, value in entries)


def stage(out: Path, hashes: Mapping[str, Hash], record: Provenance, traces: str | None) -> Staged:
    """Return the files to upload. `record` is the folder's provenance, `traces` the dataset repository, if any."""
    clean = redactor(out)
    model: list[Sent] = []
    trace_files: list[Sent] = []
    redacted: dict[str, str] = {}
    stays: list[str] = []
    for name, path in contents.files(out).items():
        kind = contents.kind(name)
        if kind == "local" or (kind == "trace" and traces is None):
            if name != f"{FOLDER}/{PROVENANCE}":
                stays.append(name)
            continue
        sent = _staged(name, path, hashes.get(name), clean)
        if sent.data is not None and (was := file_sha256(path)) != sent.sha256:
            redacted[name] = was
        (trace_files if kind == "trace" else model).append(sent)
    if traces is not None:
        trace_files += [sent for sent in model if _is_pruning(sent.name)]
    provenance = _provenance(record, model, redacted, traces)
    model.append(_in_memory(f"{FOLDER}/{PROVENANCE}", provenance))
    return Staged(tuple(model), tuple(trace_files), redacted, tuple(stays))


def _is_pruning(name: str) -> bool:
    return name in {f"{FOLDER}/{file}" for file in ("prune-plan.json", "coverage.json", "loops.json")}


def _staged(name: str, path: Path, known: Hash | None, clean: Callable[[str, str], str]) -> Sent:
    """Return one file: evidence is redacted in memory, other files are read during the upload."""
    ours = name.startswith(f"{FOLDER}/") and is_text(name)
    if not ours and name != CARD:
        assert known is not None, name
        return Sent(name, known.nbytes, known.sha256, path=path)
    if path.stat().st_size > MOST_TEXT_NBYTES:
        what = f"'{name}' is larger than {MOST_TEXT_NBYTES >> 20} MiB, too large to redact local paths"
        raise CheckpointError(what, where=str(path), fix="move it out of the folder")
    raw = path.read_bytes()
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError:
        return _in_memory(name, raw)
    return _in_memory(name, clean(name, text).encode() if ours else raw)


def _in_memory(name: str, data: bytes) -> Sent:
    return Sent(name, len(data), hashlib.sha256(data).hexdigest(), data=data)


def redactor(out: Path) -> Callable[[str, str], str]:
    """Return a function that redacts this machine's folders and, in evidence, any local path and the host name."""
    known = [(within(root), ".") for root in sorted({str(out.absolute()), str(out.resolve())}, key=len, reverse=True)]
    home = str(Path.home())
    mine = [*known, *([(re.compile(rf"(?<![\w./-]){re.escape(home)}(?=/)"), "~")] if len(home) > 1 else [])]
    host = telling_host()

    def clean(name: str, text: str) -> str:
        before = text
        for pattern, instead in known:
            text = pattern.sub(instead, text)
        if contents.kind(name) == "trace":
            for pattern, instead in mine:
                text = pattern.sub(instead, text)
            return text
        text = LOCAL_PATH.sub(lambda match: match[0].rstrip("/").rpartition("/")[2], text)
        if host is not None:
            text = host_pattern(host).sub(_HOST, text)
        return _marked(text) if name == f"{FOLDER}/{PLAN}" and text != before else text

    return clean


def _marked(text: str) -> str:
    """Mark a plan as redacted, so that an audit does not report a mismatch."""
    plan: Any = json.loads(text)
    return json.dumps({**plan, REDACTED: True}, indent=1)


def _provenance(record: Provenance, sent: Sequence[Sent], redacted: Mapping[str, str], traces: str | None) -> bytes:
    """Return the provenance of exactly the uploaded files."""
    evidence = {file.name: file.sha256 for file in sent if file.name.startswith(f"{FOLDER}/")}
    outputs = {file.name: OutputFile(nbytes=file.nbytes, sha256=file.sha256) for file in sent
               if file.name not in evidence}  # fmt: skip
    published = Published(redacted=dict(sorted(redacted.items())), traces=traces)
    return as_bytes(replace(record, evidence=evidence, outputs=outputs, published=published))
