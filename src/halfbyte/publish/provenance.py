"""Write provenance.json: the source, code and environment of a checkpoint, and the hash of every output file.

File names are relative to their folders, and the machine is described only by its hardware and software. The last field
is a digest of all others, which reveals edits.

The card and the report are written later. `publish` rewrites the record for exactly the files that it uploads,
including them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import halfbyte
from halfbyte.checkpoint.atomic_write import write_whole
from halfbyte.checkpoint.folder import CONFIG, open_checkpoint
from halfbyte.checkpoint.hashing import Hash, HashProgress, Stamps, hash_files
from halfbyte.checkpoint.identity import identity as identity_of
from halfbyte.checkpoint.identity import revision_of
from halfbyte.checkpoint.output_folder import FOLDER, PLAN, read_plan
from halfbyte.checkpoint.untrusted_files import has_bytes
from halfbyte.engine.pipeline import STATS_SHA256
from halfbyte.errors import CheckpointError, MachineError, UsageError
from halfbyte.evidence.jsonl import encoded
from halfbyte.evidence.provenance import (
    CodeFacts,
    EnvironmentFacts,
    OutputFile,
    Provenance,
    RecipeFacts,
    SourceFacts,
)
from halfbyte.evidence.record import InvalidRecordError, InvalidValueError, decoded
from halfbyte.publish import contents
from halfbyte.publish.contents import MOST_EVIDENCE_NBYTES, PROVENANCE, SBOM
from halfbyte.publish.environment import code, environment
from halfbyte.publish.sbom import sbom
from halfbyte.ui.escape import pasted
from halfbyte.ui.units import timestamp

DIGEST = "digest"
_SBOM = f"{FOLDER}/{SBOM}"
_DATA = ("tokens_sha256", "rows", "domains")  # fields of plan.json's calibration

Watch = Callable[[str, HashProgress], None]  # "source" or "output", and the hashing progress


def write_provenance(out: Path, source: Path | None, watch: Watch | None = None) -> Path:
    """Write halfbyte/provenance.json and sbom.cdx.json.

    Without a source folder, only the source hashes that `quantize` verified are recorded.
    """
    if not (out / CONFIG).is_file():
        fix = "pass the output folder of a finished `halfbyte quantize`"
        raise CheckpointError("no finished checkpoint in this folder", where=str(out), fix=fix)
    plan = read_plan(out)
    stamps = Stamps(out)
    try:
        source_record = _source(plan, source, stamps, watch)
        hashes = hash_output(out, stamps, watch, skip=_SBOM)
        record = _record(plan, source_record, hashes)
        bill = sbom(record)
        if not has_bytes(out / _SBOM, bill):
            _write(out / _SBOM, bill)
        hashes |= hash_files({_SBOM: out / _SBOM}, stamps.outputs(), keep=stamps.keep("outputs"))
    finally:
        stamps.save()  # also after Ctrl-C, because hashing half a terabyte takes long
    bill_hash = {_SBOM: hashes[_SBOM].sha256}
    evidence = dict(sorted({**record.evidence, **bill_hash}.items()))
    record = replace(record, evidence=evidence, hashes=_origins(hashes))
    return _write(out / FOLDER / PROVENANCE, as_bytes(record))


def _record(plan: Mapping[str, Any], source: SourceFacts, hashes: Mapping[str, Hash]) -> Provenance:
    """Return the record without its digest."""
    kinds = {name: contents.kind(name) for name in sorted(hashes)}
    calibration = plan.get("calibration")
    try:
        facts = decoded(EnvironmentFacts, environment())
    except InvalidValueError as error:  # such as a package without a version
        raise MachineError(f"cannot describe this machine: {error}", fix="run halfbyte doctor") from None
    return Provenance(
        halfbyte=halfbyte.__version__,
        created=timestamp(),
        code=decoded(CodeFacts, code()),
        source=source,
        recipe=RecipeFacts(name=plan["recipe"].get("name"), sha256=plan["parts"].get("recipe")),
        plan=plan.get("fingerprint"),
        environment=facts,
        statistics=plan.get(STATS_SHA256),
        data={key: calibration.get(key) for key in _DATA} if calibration else None,
        evidence={name: hashes[name].sha256 for name, kind in kinds.items() if kind in ("evidence", "trace")},
        outputs={name: of_output(hashes[name]) for name, kind in kinds.items() if kind == "output"},
        hashes=_origins(hashes),
        digest="",
    )


def _write(path: Path, data: bytes) -> Path:
    try:
        write_whole(path, data)
    except OSError as error:
        raise MachineError(f"cannot write: {error.strerror}", where=str(path), fix="check the permissions") from None
    return path


def hash_output(out: Path, stamps: Stamps, watch: Watch | None = None, skip: str = "") -> dict[str, Hash]:
    """Return the hashes of all outputs, evidence and traces; files with a valid stamp are not read again."""
    here = {name: path for name, path in contents.files(out).items() if contents.is_recorded(name) and name != skip}
    paths = {name: path for name, path in here.items() if path.is_file()}
    for name, path in paths.items():
        if contents.kind(name) != "output" and path.stat().st_size > MOST_EVIDENCE_NBYTES:
            what = f"'{name}' has {path.stat().st_size:,} bytes, too large for evidence"
            raise CheckpointError(what, where=str(path), fix="move it out of the folder")
    return hash_files(paths, stamps.outputs(), watch=_named(watch, "output"), keep=stamps.keep("outputs"))


def of_output(hashed: Hash) -> OutputFile:
    """Return the record of an output file."""
    return OutputFile(nbytes=hashed.nbytes, sha256=hashed.sha256)


def as_bytes(record: Provenance) -> bytes:
    """Return the file's bytes, with the digest of the record."""
    value = record.as_json()
    return encoded(value | {DIGEST: digest(value)}, indent=1)


def digest(value: Mapping[str, Any]) -> str:
    """Return the SHA-256 of all fields except the digest, unknown ones too, independent of the file's formatting."""
    bare = {key: held for key, held in value.items() if key != DIGEST}
    return hashlib.sha256(json.dumps(bare, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def read_provenance(out: Path) -> Provenance:
    """Return the record of a folder. Raise CheckpointError if it is missing or invalid.

    Only its structure is checked: the contents may have been edited.
    """
    path = out / FOLDER / PROVENANCE
    fix = f"download it again, or create it: python -m halfbyte.release.write_provenance {pasted(out)} SRC"
    try:
        return Provenance.read(path)
    except FileNotFoundError:
        if not (out / FOLDER / PLAN).is_file():  # may be a source folder, which must not be written to
            what = f"not an output folder of halfbyte: {FOLDER}/{PROVENANCE} is missing"
            fix = f"pass an output folder; for a download, include {FOLDER}/"
            raise CheckpointError(what, where=str(out), fix=fix) from None
        raise CheckpointError(f"{FOLDER}/{PROVENANCE} is missing", where=str(out), fix=fix) from None
    except InvalidRecordError as error:
        raise CheckpointError(error.what, where=str(path), fix=fix) from None


def _source(plan: Mapping[str, Any], source: Path | None, stamps: Stamps, watch: Watch | None) -> SourceFacts:
    """Return the source's name, revision and shard hashes, as far as they are known."""
    identity: Mapping[str, str] = plan.get("source", {})
    if source is None:
        known = stamps.source()
        shards = {name: known[name][0].sha256 if name in known else None for name in sorted(identity)}
        here = ((name, *known[name]) for name in identity if name in known)
        hashes = {name: Hash(hashed.nbytes, hashed.sha256, origin) for name, hashed, origin in here}
        return SourceFacts(name=None, revision=None, shards=shards, identity=identity, hashes=_origins(hashes))
    checkpoint = open_checkpoint(source)
    if identity and dict(identity) != identity_of(checkpoint):
        what = "the output was not made from this source"
        raise UsageError(what, where=str(source), fix="pass the original source folder")
    paths = {name: source / name for name in checkpoint.shards}
    hashes = hash_files(paths, stamps.source(), watch=_named(watch, "source"), keep=stamps.keep("source"))
    name, revision = revision_of(source, paths)
    shards = {shard: hashed.sha256 for shard, hashed in hashes.items()}
    return SourceFacts(name=name, revision=revision, shards=shards, identity=identity, hashes=_origins(hashes))


def _origins(hashes: Mapping[str, Hash]) -> dict[str, int]:
    """Return the number of hashes by origin."""
    origins = sorted({hashed.origin for hashed in hashes.values()})
    return {origin: sum(hashed.origin == origin for hashed in hashes.values()) for origin in origins}


def _named(watch: Watch | None, name: str) -> Callable[[HashProgress], None] | None:
    return None if watch is None else lambda step: watch(name, step)
