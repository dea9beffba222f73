"""Publishing in order: look, hash what is not hashed, stage, look at what is staged, and only then send."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from halfbyte.publish import contents
from halfbyte.publish.evidence import read_evidence
from halfbyte.publish.hashing import Hash, Stamps, Step
from halfbyte.publish.provenance import hash_output, read_provenance
from halfbyte.publish.upload.checks import Check, before_hashing, of_record, of_staged
from halfbyte.publish.upload.staging import Sent, Staged, stage
from halfbyte.publish.upload.traces import traces as dataset_files
from halfbyte.publish.verify import Verified, verify_hashed


@dataclass(frozen=True, slots=True)
class Prepared:
    """What would be sent, and what was looked at."""

    checks: tuple[Check, ...]
    model: tuple[Sent, ...] = ()
    traces: tuple[Sent, ...] = ()
    stays: tuple[str, ...] = ()

    @property
    def refused(self) -> list[Check]:
        """Return what stands against sending it."""
        return [check for check in self.checks if check.level == "bad"]


def prepare(
    out: Path, repo: str, *, traces: str | None, force: bool, watch: Callable[[Step], None] | None = None
) -> Prepared:
    """Look at everything; nothing is sent. What is wrong before hashing is said before hours of it."""
    evidence = read_evidence(out)
    checks = before_hashing(out, evidence, force=force)
    if any(check.level == "bad" for check in checks):
        return Prepared(tuple(checks))
    record = read_provenance(out)
    hashes = _hashes(out, watch)
    found: Verified = verify_hashed(out, record, hashes)
    checks.append(of_record(found, out))
    if not found.same:
        return Prepared(tuple(checks))
    staged: Staged = stage(out, hashes, record, traces)
    checks += of_staged(out, staged)
    beside: list[Sent] = []
    if traces is not None:
        beside = dataset_files(staged.traces, repo, str(record.get("plan")), _licence(out))
    return Prepared(tuple(checks), staged.model, tuple(beside), staged.stays)


def _hashes(out: Path, watch: Callable[[Step], None] | None) -> dict[str, Hash]:
    stamps = Stamps(out)
    try:
        return hash_output(out, stamps, None if watch is None else lambda _, step: watch(step))
    finally:
        stamps.save()


def _licence(out: Path) -> str:
    """Return the licence that the card's front matter names; the checks have seen that it does."""
    text = (out / contents.CARD).read_text(encoding="utf-8", errors="replace")
    found = re.search(r"^license:[ \t]*([\w.-]+)", text, re.MULTILINE)
    return found[1] if found else "other"
