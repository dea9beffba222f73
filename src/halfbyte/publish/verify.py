"""Compare a folder with its provenance.json: every file that is recorded is hashed again, and nothing is trusted.

It needs nothing but the folder, so that it works on a download. A record that was edited is seen by its digest; one
that was made anew by somebody else is not: for that, compare the digest with the one on the card.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from halfbyte.folders import FOLDER
from halfbyte.json_file import json_object
from halfbyte.publish import contents
from halfbyte.publish.contents import CARD, CARD_HASH, CARD_RECORD, LATER, MOST_EVIDENCE_NBYTES, PROVENANCE
from halfbyte.publish.hashing import Hash, Step, hash_files
from halfbyte.publish.provenance import DIGEST, Record, digest, read_provenance
from halfbyte.publish.report.visible import visible
from halfbyte.terminal.console import Level
from halfbyte.write import file_sha256

Problem = Literal["changed", "missing", "added", "edited"]
_WEIGHTS = ".safetensors"  # of a source, which have no size in the record
_ADDED_BY_THE_HUB = frozenset((".gitattributes",))


@dataclass(frozen=True, slots=True)
class Difference:
    """One file that is not what the record says."""

    problem: Problem
    file: str
    text: str


@dataclass(frozen=True, slots=True)
class Verified:
    """What comparing a folder with its record found."""

    differences: tuple[Difference, ...]
    files: int  # that were compared
    nbytes: int
    digest: str
    plan: str | None
    quick: bool  # sizes only
    not_covered: tuple[str, ...]  # written after the record, and not in it
    source_shards: int | None  # that were compared; None: no source was given

    @property
    def same(self) -> bool:
        """Whether everything is what was recorded."""
        return not self.differences

    def as_dict(self) -> Mapping[str, Any]:
        """Return plain data, as `--json` prints it."""
        return {**asdict(self), "same": self.same}

    def sentences(self) -> list[tuple[Level, str]]:
        """Return what is shown: each difference, and what was compared."""
        found: list[tuple[Level, str]] = [("bad", f"{d.file}: {d.text}") for d in self.differences]
        how = "the size" if self.quick else "the size and SHA-256"
        if self.same:
            found.append(("good", f"{self.files} of {self.files} files have {how} of {PROVENANCE}"))
        if self.source_shards is not None and self.same:
            found.append(("good", f"{self.source_shards} shards of the source {'are there' if self.quick else 'too'}"))
        if self.quick:
            found.append(("note", "only sizes of outputs were compared: to see a changed byte, leave out --quick"))
        if self.not_covered:
            names = ", ".join(self.not_covered)
            found.append(("note", f"written after {PROVENANCE}, and in it only once published: {names}"))
        return [(level, visible(text, keep_paths=True)) for level, text in found]  # names are a stranger's words


def verify(
    out: Path, *, quick: bool = False, source: Path | None = None, watch: Callable[[Step], None] | None = None
) -> Verified:
    """Compare a folder, and its source if one is given, with what was recorded."""
    return _verify(out, read_provenance(out), None, quick, source, watch)


def verify_hashed(out: Path, record: Record, hashed: Mapping[str, Hash]) -> Verified:
    """Compare a folder whose files have been hashed already; those that have not are read."""
    return _verify(out, record, hashed, False, None, None)


def _verify(
    out: Path,
    record: Record,
    hashed: Mapping[str, Hash] | None,
    quick: bool,
    source: Path | None,
    watch: Callable[[Step], None] | None,
) -> Verified:
    found: list[Difference] = []
    if record.get(DIGEST) != digest(record):
        text = "was edited after it was written: its digest is another"
        found.append(Difference("edited", f"{FOLDER}/{PROVENANCE}", text))
    sizes: dict[str, int | None] = {name: entry["nbytes"] for name, entry in record["outputs"].items()}
    hashes = {name: str(entry["sha256"]) for name, entry in record["outputs"].items()} | dict(record["evidence"])
    here = contents.files(out)
    recorded = _inside(hashes, found)
    present = {name: out / name for name in recorded if (out / name).is_file()}
    found += [Difference("missing", name, "is missing") for name in recorded if name not in present]
    found += _compare(present, sizes, hashes, quick, watch, hashed)
    found += [Difference("added", name, "is not in the record") for name in here if _is_added(name, hashes)]
    if hashed is None and not quick and CARD in here and CARD not in hashes:
        found += _compare_card(out)
    shards = None
    if source is not None:
        shards = _compare_source(source, record["source"]["shards"], quick, watch, found)
    return Verified(
        differences=tuple(found),
        files=sum(not quick or name in sizes for name in present),  # of evidence no size is recorded
        nbytes=sum(path.stat().st_size for path in present.values()),
        digest=str(record.get(DIGEST)),
        plan=record.get("plan"),
        quick=quick,
        not_covered=tuple(sorted(name for name in LATER if name in here and name not in hashes)),
        source_shards=shards,
    )


def _inside(names: Mapping[str, str], found: list[Difference]) -> list[str]:
    """Return the names that stay in the folder; a record from elsewhere may name any file of this machine."""
    kept: list[str] = []
    for name in names:
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts or not path.parts or "\0" in name:
            found.append(Difference("edited", f"{FOLDER}/{PROVENANCE}", f"names a file outside the folder: {name!r}"))
        else:
            kept.append(name)
    return kept


def _compare(
    present: Mapping[str, Path],
    sizes: Mapping[str, int | None],
    hashes: Mapping[str, str],
    quick: bool,
    watch: Callable[[Step], None] | None,
    hashed: Mapping[str, Hash] | None = None,
) -> list[Difference]:
    """Compare files with their sizes, and with their hashes unless that is too long."""
    found: list[Difference] = []
    readable: dict[str, Path] = {}
    for name, path in present.items():
        size, wanted = path.stat().st_size, sizes.get(name)
        if wanted is not None and size != wanted:
            found.append(Difference("changed", name, f"has {size:,} bytes, recorded are {wanted:,}"))
        elif wanted is None and not name.endswith(_WEIGHTS) and size > MOST_EVIDENCE_NBYTES:
            found.append(Difference("changed", name, f"has {size:,} bytes, more than any evidence"))
        elif not quick:
            readable[name] = path
    known = {name: hashed[name] for name in readable if hashed is not None and name in hashed}
    unread = {name: path for name, path in readable.items() if name not in known}
    for name, made in {**known, **hash_files(unread, watch=watch)}.items():
        if made.sha256 != hashes[name]:
            text = f"has other bytes: SHA-256 {made.sha256}, recorded is {hashes[name]}"
            found.append(Difference("changed", name, text))
    return found


def _compare_card(out: Path) -> list[Difference]:
    """Compare the card with what `halfbyte card` noted here; in the record it is only once published."""
    noted: Any = json_object(out / FOLDER / CARD_RECORD).get(CARD_HASH)
    if not isinstance(noted, str) or not (out / CARD).is_file() or file_sha256(out / CARD) == noted:
        return []
    return [Difference("changed", CARD, "is not what `halfbyte card` wrote")]


def _compare_source(
    source: Path,
    shards: Mapping[str, str | None],
    quick: bool,
    watch: Callable[[Step], None] | None,
    found: list[Difference],
) -> int:
    """Compare the source's shards; those without a recorded hash cannot be."""
    hashes = {name: sha for name, sha in shards.items() if sha is not None}
    named = {f"source/{name}": sha for name, sha in hashes.items()}
    recorded = _inside(hashes, found)
    present = {f"source/{name}": source / name for name in recorded if (source / name).is_file()}
    found += [Difference("missing", f"source/{n}", "is missing") for n in recorded if f"source/{n}" not in present]
    found += [
        Difference("changed", f"source/{name}", "has no recorded hash") for name, sha in shards.items() if sha is None
    ]
    found += _compare(present, {}, named, quick, watch)
    return len(present)


def _is_added(name: str, hashes: Mapping[str, str]) -> bool:
    return name not in hashes and name not in _ADDED_BY_THE_HUB and contents.kind(name) not in ("local", "later")
