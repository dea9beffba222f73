"""Prepare an upload: check the folder, hash its files, stage them, and check the staged files."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from halfbyte.checkpoint.hashing import Hash, HashProgress, Stamps
from halfbyte.evidence.folder import read_evidence
from halfbyte.publish import contents
from halfbyte.publish.hub.checks import Check, before_hashing, of_record, of_staged
from halfbyte.publish.hub.staging import Sent, Staged, dataset_files, stage
from halfbyte.publish.provenance import hash_output, read_provenance
from halfbyte.publish.verify import Verified, verify_hashed


@dataclass(frozen=True, slots=True)
class Prepared:
    """The files to upload, and the results of the checks."""

    checks: tuple[Check, ...]
    model: tuple[Sent, ...] = ()
    traces: tuple[Sent, ...] = ()
    stays: tuple[str, ...] = ()

    @property
    def refused(self) -> list[Check]:
        """Return the failed checks."""
        return [check for check in self.checks if check.level == "bad"]


def prepare(
    out: Path, repo: str, *, traces: str | None, force: bool, watch: Callable[[HashProgress], None] | None = None
) -> Prepared:
    """Run all checks without uploading. Checks that need no hashes run first, because hashing can take hours."""
    evidence = read_evidence(out)
    checks = before_hashing(out, repo, evidence, force=force)
    if any(check.level == "bad" for check in checks):
        return Prepared(tuple(checks))
    record = read_provenance(out)
    hashes = _hashes(out, watch)
    verified: Verified = verify_hashed(out, record, hashes)
    checks.append(of_record(verified, out))
    if not verified.same:
        return Prepared(tuple(checks))
    staged: Staged = stage(out, hashes, record, traces)
    checks += of_staged(out, staged)
    dataset: list[Sent] = []
    if traces is not None:
        dataset = dataset_files(staged.traces, repo, str(record.plan), _license(out))
    return Prepared(tuple(checks), staged.model, tuple(dataset), staged.stays)


def _hashes(out: Path, watch: Callable[[HashProgress], None] | None) -> dict[str, Hash]:
    stamps = Stamps(out)
    try:
        return hash_output(out, stamps, None if watch is None else lambda _, step: watch(step))
    finally:
        stamps.save()


def _license(out: Path) -> str:
    """Return the license in the card's front matter, which the checks require."""
    text = (out / contents.CARD).read_text(encoding="utf-8", errors="replace")
    match = re.search(r"^license:[ \t]*([\w.-]+)", text, re.MULTILINE)
    return match[1] if match else "other"
