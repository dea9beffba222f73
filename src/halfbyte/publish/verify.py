"""Compare a folder with its provenance.json by hashing every recorded file again.

It needs only the folder, so it works on a download. The digest reveals an edited record. A record that was replaced as
a whole is not detected: compare its digest with the one on the card.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from halfbyte.checkpoint.hashing import Hash, HashProgress, file_sha256, hash_files
from halfbyte.checkpoint.output_folder import FOLDER
from halfbyte.checkpoint.untrusted_files import json_object, read_json
from halfbyte.evidence.provenance import Provenance
from halfbyte.publish import contents
from halfbyte.publish.contents import CARD, CARD_HASH, CARD_RECORD, LATER, MOST_EVIDENCE_NBYTES, PROVENANCE
from halfbyte.publish.provenance import digest, read_provenance
from halfbyte.publish.visible_text import visible
from halfbyte.ui.console import Level

Problem = Literal["changed", "missing", "added", "edited"]
_WEIGHTS = ".safetensors"  # source shards have no recorded size
_ADDED_BY_THE_HUB = frozenset((".gitattributes",))


@dataclass(frozen=True, slots=True)
class Difference:
    """One file that differs from the record."""

    problem: Problem
    file: str
    text: str


@dataclass(frozen=True, slots=True)
class Verified:
    """The result of comparing a folder with its record."""

    differences: tuple[Difference, ...]
    files: int  # compared
    nbytes: int
    digest: str
    plan: str | None
    quick: bool  # sizes only
    not_covered: tuple[str, ...]  # files written after the record
    source_shards: int | None  # compared; None without a source folder

    @property
    def same(self) -> bool:
        """Whether the folder matches the record."""
        return not self.differences

    def as_dict(self) -> Mapping[str, Any]:
        """Return the data that `--json` prints."""
        return {**asdict(self), "same": self.same}

    def sentences(self) -> list[tuple[Level, str]]:
        """Return the lines to print: each difference, and a summary."""
        lines: list[tuple[Level, str]] = [("bad", f"{d.file}: {d.text}") for d in self.differences]
        how = "size" if self.quick else "size and SHA-256"
        if self.same:
            lines.append(("good", f"{self.files} of {self.files} files match {PROVENANCE} by {how}"))
        if self.source_shards is not None and self.same:
            lines.append(("good", f"{self.source_shards} source shards {'are present' if self.quick else 'match'}"))
        if self.quick:
            lines.append(("note", "only output sizes were compared; omit --quick to compare contents"))
        if self.not_covered:
            names = ", ".join(self.not_covered)
            lines.append(("note", f"written after {PROVENANCE} and recorded only when published: {names}"))
        return [(level, visible(text, keep_paths=True)) for level, text in lines]  # file names are untrusted


def verify(
    out: Path, *, quick: bool = False, source: Path | None = None, watch: Callable[[HashProgress], None] | None = None
) -> Verified:
    """Compare a folder, and optionally its source, with the record."""
    return _verify(out, read_provenance(out), None, quick, source, watch)


def verify_hashed(out: Path, record: Provenance, hashed: Mapping[str, Hash]) -> Verified:
    """Compare a folder using known hashes; files without one are read."""
    return _verify(out, record, hashed, False, None, None)


def _verify(
    out: Path,
    record: Provenance,
    hashed: Mapping[str, Hash] | None,
    quick: bool,
    source: Path | None,
    watch: Callable[[HashProgress], None] | None,
) -> Verified:
    differences: list[Difference] = []
    if record.digest != digest(read_json(out / FOLDER / PROVENANCE, finite=True)):
        text = "was edited: its digest does not match"
        differences.append(Difference("edited", f"{FOLDER}/{PROVENANCE}", text))
    sizes: dict[str, int | None] = {name: file.nbytes for name, file in record.outputs.items()}
    hashes = {name: file.sha256 for name, file in record.outputs.items()} | dict(record.evidence)
    here = contents.files(out)
    recorded = _inside(hashes, differences)
    present = {name: out / name for name in recorded if (out / name).is_file()}
    differences += [Difference("missing", name, "is missing") for name in recorded if name not in present]
    differences += _compare(present, sizes, hashes, quick, watch, hashed)
    differences += [Difference("added", name, "is not in the record") for name in here if _is_added(name, hashes)]
    if hashed is None and not quick and CARD in here and CARD not in hashes:
        differences += _compare_card(out)
    shards = None
    if source is not None:
        shards = _compare_source(source, record.source.shards, quick, watch, differences)
    return Verified(
        differences=tuple(differences),
        files=sum(not quick or name in sizes for name in present),  # evidence has no recorded size
        nbytes=sum(path.stat().st_size for path in present.values()),
        digest=record.digest,
        plan=record.plan,
        quick=quick,
        not_covered=tuple(sorted(name for name in LATER if name in here and name not in hashes)),
        source_shards=shards,
    )


def _inside(names: Mapping[str, str], differences: list[Difference]) -> list[str]:
    """Return the names that stay inside the folder; an untrusted record may name any path."""
    kept: list[str] = []
    for name in names:
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts or not path.parts or "\0" in name:
            differences.append(
                Difference("edited", f"{FOLDER}/{PROVENANCE}", f"names a file outside the folder: {name!r}")
            )
        else:
            kept.append(name)
    return kept


def _compare(
    present: Mapping[str, Path],
    sizes: Mapping[str, int | None],
    hashes: Mapping[str, str],
    quick: bool,
    watch: Callable[[HashProgress], None] | None,
    hashed: Mapping[str, Hash] | None = None,
) -> list[Difference]:
    """Compare files with their recorded sizes and, unless `quick` is set, hashes."""
    differences: list[Difference] = []
    readable: dict[str, Path] = {}
    for name, path in present.items():
        size, wanted = path.stat().st_size, sizes.get(name)
        if wanted is not None and size != wanted:
            differences.append(Difference("changed", name, f"has {size:,} bytes, recorded {wanted:,}"))
        elif wanted is None and not name.endswith(_WEIGHTS) and size > MOST_EVIDENCE_NBYTES:
            differences.append(Difference("changed", name, f"has {size:,} bytes, too large for evidence"))
        elif not quick:
            readable[name] = path
    known = {name: hashed[name] for name in readable if hashed is not None and name in hashed}
    unread = {name: path for name, path in readable.items() if name not in known}
    for name, computed in {**known, **hash_files(unread, watch=watch)}.items():
        if computed.sha256 != hashes[name]:
            text = f"has changed: SHA-256 {computed.sha256}, recorded {hashes[name]}"
            differences.append(Difference("changed", name, text))
    return differences


def _compare_card(out: Path) -> list[Difference]:
    """Compare the card with the hash in card.json; the record includes the card only when published."""
    noted: Any = json_object(out / FOLDER / CARD_RECORD).get(CARD_HASH)
    if not isinstance(noted, str) or not (out / CARD).is_file() or file_sha256(out / CARD) == noted:
        return []
    return [Difference("changed", CARD, "was changed after `halfbyte card` wrote it")]


def _compare_source(
    source: Path,
    shards: Mapping[str, str | None],
    quick: bool,
    watch: Callable[[HashProgress], None] | None,
    differences: list[Difference],
) -> int:
    """Compare the source's shards; a shard without a recorded hash is a difference."""
    hashes = {name: sha for name, sha in shards.items() if sha is not None}
    named = {f"source/{name}": sha for name, sha in hashes.items()}
    recorded = _inside(hashes, differences)
    present = {f"source/{name}": source / name for name in recorded if (source / name).is_file()}
    differences += [
        Difference("missing", f"source/{n}", "is missing") for n in recorded if f"source/{n}" not in present
    ]
    differences += [
        Difference("changed", f"source/{name}", "has no recorded hash") for name, sha in shards.items() if sha is None
    ]
    differences += _compare(present, {}, named, quick, watch)
    return len(present)


def _is_added(name: str, hashes: Mapping[str, str]) -> bool:
    return name not in hashes and name not in _ADDED_BY_THE_HUB and contents.kind(name) not in ("local", "later")
