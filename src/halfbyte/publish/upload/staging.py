"""What is sent: weights and the model's own files as they lie, evidence without this machine's paths.

Stages note where they ran: the folder that a server loaded, the file that data came from. That is right on this
machine and nobody's business elsewhere. So evidence is copied in memory, small as it is, and paths become names
relative to the folder, or bare names. The originals stay as they are, weights are never copied, and nothing is written
into the folder. The provenance that is published lists what is sent, and the hashes that redacted files had before.

Model answers keep their words: in a trace, only this machine's own folders are replaced. A secret is never replaced:
it must be taken back where it leaked from, so `checks` refuses it.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from halfbyte.errors import CheckpointError
from halfbyte.folders import FOLDER, PLAN, REDACTED
from halfbyte.publish import contents
from halfbyte.publish.contents import CARD, PROVENANCE
from halfbyte.publish.hashing import Hash
from halfbyte.publish.provenance import Record, as_bytes, of_output
from halfbyte.publish.upload.secrets import LOCAL_PATH, host_pattern, telling_host, within
from halfbyte.source.headers import METADATA, read_raw_header

MOST_TEXT_NBYTES = 1 << 28
_TENSORS = ".safetensors"
_BINARY = (_TENSORS, ".bin", ".pt", ".png", ".jpg", ".jpeg", ".gif", ".webp", ".pdf", ".npz", ".npy")
_HOST = "HOST"


@dataclass(frozen=True, slots=True)
class Sent:
    """One file of a repository: bytes in memory, or a file that is read when it is sent."""

    name: str
    nbytes: int
    sha256: str
    path: Path | None = None
    data: bytes | None = None

    def read(self) -> bytes:
        """Return all bytes; not for weights."""
        if self.data is not None:
            return self.data
        assert self.path is not None
        return self.path.read_bytes()


@dataclass(frozen=True, slots=True)
class Staged:
    """What goes where."""

    model: tuple[Sent, ...]
    traces: tuple[Sent, ...]
    redacted: Mapping[str, str]  # file -> the SHA-256 that it has here
    stays: tuple[str, ...]  # what is not sent


def is_text(name: str) -> bool:
    """Whether a file is one that people read, by its name."""
    return not name.endswith(_BINARY)


def metadata_text(sent: Sent) -> str:
    """Return what a safetensors file says besides its tensors, an entry a line; nothing for other files.

    Whoever wrote the file may have put anything there, and everybody who loads it can read it.
    """
    if not sent.name.endswith(_TENSORS) or sent.path is None:
        return ""
    raw, _ = read_raw_header(sent.path, sent.name)
    try:
        held: Any = json.loads(raw).get(METADATA)
    except (ValueError, AttributeError, RecursionError):
        raise CheckpointError("the header is not JSON", where=str(sent.path), fix="make the file again") from None
    entries = cast("dict[str, Any]", held).items() if isinstance(held, dict) else ()
    return "\n".join(f"{key}: {value}" for key, value in entries)


def stage(out: Path, hashes: Mapping[str, Hash], record: Record, traces: str | None) -> Staged:
    """Return what is sent of a folder. `record` is its provenance, `traces` the dataset repository, if one is asked."""
    clean = redactor(out)
    model: list[Sent] = []
    beside: list[Sent] = []
    redacted: dict[str, str] = {}
    stays: list[str] = []
    for name, path in contents.files(out).items():
        kind = contents.kind(name)
        if kind == "local" or (kind == "trace" and traces is None):
            if name != f"{FOLDER}/{PROVENANCE}":
                stays.append(name)
            continue
        sent = _staged(name, path, hashes.get(name), clean)
        if sent.data is not None and (was := hashlib.sha256(path.read_bytes()).hexdigest()) != sent.sha256:
            redacted[name] = was
        (beside if kind == "trace" else model).append(sent)
    if traces is not None:
        beside += [sent for sent in model if _is_pruning(sent.name)]
    made = _provenance(record, model, redacted, traces)
    model.append(_in_memory(f"{FOLDER}/{PROVENANCE}", made))
    return Staged(tuple(model), tuple(beside), redacted, tuple(stays))


def _is_pruning(name: str) -> bool:
    return name in {f"{FOLDER}/{file}" for file in ("prune-plan.json", "coverage.json", "loops.json")}


def _staged(name: str, path: Path, known: Hash | None, clean: Callable[[str, str], str]) -> Sent:
    """Return one file: evidence is redacted in memory, all else is read when it is sent."""
    ours = name.startswith(f"{FOLDER}/") and is_text(name)
    if not ours and name != CARD:
        assert known is not None, name
        return Sent(name, known.nbytes, known.sha256, path=path)
    if path.stat().st_size > MOST_TEXT_NBYTES:
        what = f"'{name}' is larger than {MOST_TEXT_NBYTES >> 20} MiB, so that its paths cannot be taken out"
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
    """Return what takes this machine out of a text: its own folders, and in evidence any path that looks local."""
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
    """Say in a plan that its recipe was redacted, so that an audit does not take it for a forgery."""
    found: Any = json.loads(text)
    return json.dumps({**found, REDACTED: True}, indent=1)


def _provenance(record: Record, sent: Sequence[Sent], redacted: Mapping[str, str], traces: str | None) -> bytes:
    """Return the record of exactly what is sent."""
    hashes = {file.name: Hash(file.nbytes, file.sha256, "") for file in sent}
    evidence = {name: made.sha256 for name, made in hashes.items() if name.startswith(f"{FOLDER}/")}
    outputs = {name: of_output(made) for name, made in hashes.items() if name not in evidence}
    published = {"redacted": dict(sorted(redacted.items())), "traces": traces}
    return as_bytes({**record, "evidence": evidence, "outputs": outputs, "published": published})
