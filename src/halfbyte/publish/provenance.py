"""provenance.json: what a checkpoint was made from, by what, and the hash of every file that came out.

It names files relative to their folders, and says nothing of the machine but what computed. Its last field is a digest
of all the others, so that an edit is seen.

Card and report are written after it. `publish` writes it once more, for exactly the files that it sends, and
then they are in it too.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, cast

import halfbyte
from halfbyte.errors import CheckpointError, MachineError, UsageError
from halfbyte.folders import FOLDER, read_plan
from halfbyte.pipeline import STATS_SHA256
from halfbyte.publish import contents
from halfbyte.publish.contents import MOST_EVIDENCE_NBYTES, PROVENANCE, SBOM
from halfbyte.publish.environment import code, environment
from halfbyte.publish.hashing import Hash, Stamps, Step, hash_files
from halfbyte.publish.sbom import sbom
from halfbyte.source.checkpoint import CONFIG, open_checkpoint
from halfbyte.source.foreign import plain_bytes, read_json
from halfbyte.source.identity import identity as identity_of
from halfbyte.source.known_hashes import revision_of
from halfbyte.terminal.pasted import pasted
from halfbyte.write import write_whole

FORMAT = 1
DIGEST = "digest"
_SBOM = f"{FOLDER}/{SBOM}"
_DATA = ("tokens_sha256", "rows", "domains")  # of what plan.json says of the calibration

Record = Mapping[str, Any]
Watch = Callable[[str, Step], None]  # "source" or "output", and where hashing is


def write_provenance(out: Path, source: Path | None, watch: Watch | None = None) -> Path:
    """Write halfbyte/provenance.json and sbom.cdx.json.

    Without a source, only the hashes that `quantize` verified are known of it.
    """
    if not (out / CONFIG).is_file():
        fix = "give the folder that `halfbyte quantize` made, after it has ended"
        raise CheckpointError("there is no finished checkpoint here", where=str(out), fix=fix)
    plan = read_plan(out)
    stamps = Stamps(out)
    try:
        made_from = _source(plan, source, stamps, watch)
        found = hash_output(out, stamps, watch, skip=_SBOM)
        record = _record(plan, made_from) | _hashes(found)
        bill = sbom(record)
        if not _holds(out / _SBOM, bill):
            _write(out / _SBOM, bill)
        found |= hash_files({_SBOM: out / _SBOM}, stamps.outputs(), keep=stamps.keep("outputs"))
    finally:
        stamps.save()  # also after Ctrl-C: hashing half a terabyte takes long
    return _write(out / FOLDER / PROVENANCE, as_bytes(record | _hashes(found)))


def _record(plan: Mapping[str, Any], made_from: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "halfbyte": halfbyte.__version__,
        "made": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "code": code(),
        "source": made_from,
        "recipe": {"name": plan["recipe"].get("name"), "sha256": plan["parts"].get("recipe")},
        "plan": plan.get("fingerprint"),
        "environment": environment(),
        "statistics": plan.get(STATS_SHA256),
        "data": {key: plan["calibration"].get(key) for key in _DATA} if plan.get("calibration") else None,
    }


def _hashes(found: Mapping[str, Hash]) -> dict[str, Any]:
    kinds = {name: contents.kind(name) for name in sorted(found)}
    return {
        "evidence": {name: found[name].sha256 for name, kind in kinds.items() if kind in ("evidence", "trace")},
        "outputs": {name: of_output(found[name]) for name, kind in kinds.items() if kind == "output"},
        "hashes": _origins(found),
    }


def _holds(path: Path, data: bytes) -> bool:
    """Whether a file has these bytes already: what is not written again keeps its stamp."""
    try:
        return plain_bytes(path, len(data)) == data
    except OSError:
        return False


def _write(path: Path, data: bytes) -> Path:
    try:
        write_whole(path, data)
    except OSError as error:
        raise MachineError(f"cannot write: {error.strerror}", where=str(path), fix="check the permissions") from None
    return path


def hash_output(out: Path, stamps: Stamps, watch: Watch | None = None, skip: str = "") -> dict[str, Hash]:
    """Hash every output, every piece of evidence and every trace of a folder that no stamp vouches for."""
    here = {name: path for name, path in contents.files(out).items() if contents.is_recorded(name) and name != skip}
    found = {name: path for name, path in here.items() if path.is_file()}
    for name, path in found.items():
        if contents.kind(name) != "output" and path.stat().st_size > MOST_EVIDENCE_NBYTES:
            what = f"'{name}' has {path.stat().st_size:,} bytes, more than any evidence"
            raise CheckpointError(what, where=str(path), fix="move it out of the folder")
    return hash_files(found, stamps.outputs(), watch=_named(watch, "output"), keep=stamps.keep("outputs"))


def of_output(made: Hash) -> dict[str, Any]:
    """Return what the record says of an output."""
    return {"nbytes": made.nbytes, "sha256": made.sha256}


def as_bytes(record: Record) -> bytes:
    """Return the file's bytes, with the digest of the record."""
    bare = {key: value for key, value in record.items() if key != DIGEST}
    text = json.dumps({**bare, DIGEST: digest(bare)}, indent=1, ensure_ascii=False) + "\n"
    return text.encode("utf-8", "backslashreplace")  # a file's name need not be UTF-8; JSON spells it the same way


def digest(record: Record) -> str:
    """Return the SHA-256 of all fields but the digest, however the file is laid out."""
    bare = {key: value for key, value in record.items() if key != DIGEST}
    return hashlib.sha256(json.dumps(bare, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def read_provenance(out: Path) -> Record:
    """Return the record of a folder, which may have been edited; CheckpointError where there is none that can be read.

    Only its shape is trusted: names with hashes.
    """
    path = out / FOLDER / PROVENANCE
    fix = f"download it again, or write it: halfbyte release SRC {pasted(out)} -r RECIPE"
    try:
        found: Any = read_json(path)
    except FileNotFoundError:
        raise CheckpointError(f"there is no {FOLDER}/{PROVENANCE} here", where=str(out), fix=fix) from None
    except (OSError, ValueError):
        raise CheckpointError(f"{PROVENANCE} cannot be read", where=str(path), fix=fix) from None
    if not _is_record(found):
        raise CheckpointError(f"{PROVENANCE} is none of this version of halfbyte", where=str(path), fix=fix)
    return cast("dict[str, Any]", found)


def _is_record(found: Any) -> bool:
    try:
        hashes = [*found["evidence"].values(), *(sha for sha in found["source"]["shards"].values() if sha is not None)]
        outputs = list(found["outputs"].values())
    except (KeyError, TypeError, AttributeError):
        return False
    is_ours = found.get("format") == FORMAT
    return is_ours and all(isinstance(sha, str) for sha in hashes) and all(map(_is_output, outputs))


def _is_output(entry: Any) -> bool:
    match entry:
        case {"nbytes": int(), "sha256": str()}:
            return True
        case _:
            return False


def _source(plan: Mapping[str, Any], source: Path | None, stamps: Stamps, watch: Watch | None) -> dict[str, Any]:
    """Return what is known of the source: its name, revision, and shards."""
    identity: Mapping[str, str] = plan.get("source", {})
    if source is None:
        known = stamps.source()
        shards = {name: known[name][0].sha256 if name in known else None for name in sorted(identity)}
        here = ((name, *known[name]) for name in identity if name in known)
        found = {name: Hash(made.nbytes, made.sha256, origin) for name, made, origin in here}
        return {"name": None, "revision": None, "shards": shards, "identity": identity, "hashes": _origins(found)}
    checkpoint = open_checkpoint(source)
    if identity and dict(identity) != identity_of(checkpoint):
        what = "this is not the source that the output was made from"
        raise UsageError(what, where=str(source), fix="give the folder that it was made from")
    paths = {name: source / name for name in checkpoint.shards}
    found = hash_files(paths, stamps.source(), watch=_named(watch, "source"), keep=stamps.keep("source"))
    name, revision = revision_of(source, paths)
    shards = {shard: made.sha256 for shard, made in found.items()}
    return {"name": name, "revision": revision, "shards": shards, "identity": identity, "hashes": _origins(found)}


def _origins(found: Mapping[str, Hash]) -> dict[str, int]:
    """Return how many hashes come from where."""
    origins = sorted({made.origin for made in found.values()})
    return {origin: sum(made.origin == origin for made in found.values()) for origin in origins}


def _named(watch: Watch | None, what: str) -> Callable[[Step], None] | None:
    return None if watch is None else lambda step: watch(what, step)
