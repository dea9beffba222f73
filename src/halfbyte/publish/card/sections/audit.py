"""Audit section: findings of `halfbyte audit`, and the list of evidence files."""

from __future__ import annotations

from typing import Any

from halfbyte.checkpoint.output_folder import FOLDER
from halfbyte.evidence.audit import Audit
from halfbyte.evidence.folder import KINDS
from halfbyte.evidence.loops import Loops
from halfbyte.evidence.plan import PruneSummary
from halfbyte.publish.card.facts import CardFacts
from halfbyte.publish.card.markdown import Markdown, code, phrase, table

_LEVELS = {"good": "pass", "note": "note", "bad": "**FAIL**"}


def facts(card: CardFacts) -> dict[str, Any]:
    """Return the audit findings and the evidence files."""
    audit = card.get(Audit)
    files = [[code(f"{FOLDER}/{kind.file}"), "present" if card.get(kind) is not None else card.missing(kind)]
             for kind in KINDS.values() if kind not in (PruneSummary, Loops) or card.pruned]  # fmt: skip
    evidence = {"files": table(["File", "Status"], files)}
    if audit is None:
        return {"missing": card.missing(Audit), **evidence}
    against = f", against the source {audit.against}" if audit.against else ", without the source"
    return {
        "missing": None,
        "passed": audit.passed,
        "how": phrase("{}{}, halfbyte {}", audit.date, against, audit.versions.get("halfbyte")),
        "findings": table(["Check", "Result", "Details"], [
            [finding.check, Markdown(_LEVELS[finding.level]), finding.text] for finding in audit.findings
        ]),
        **evidence,
    }  # fmt: skip
