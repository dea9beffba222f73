"""Audit section: findings of `halfbyte audit`, and the list of evidence files."""

from __future__ import annotations

from typing import Any

from halfbyte.checkpoint.output_folder import FOLDER
from halfbyte.evidence.fields import rows, words
from halfbyte.publish.card.facts import CardFacts
from halfbyte.publish.card.markdown import Markdown, code, phrase, table
from halfbyte.publish.evidence import PLACES

_LEVELS = {"good": "pass", "note": "note", "bad": "**FAIL**"}


def facts(card: CardFacts) -> dict[str, Any]:
    """Return the audit findings and the evidence files."""
    audit = card.get("audit")
    files = [[code(f"{FOLDER}/{place.file}"), "present" if card.get(kind) is not None else card.missing(kind)]
             for kind, place in PLACES.items() if kind not in ("prune", "loops") or card.pruned]  # fmt: skip
    evidence = {"files": table(["File", "Status"], files)}
    if audit is None:
        return {"missing": card.missing("audit"), **evidence}
    against = words(audit, "against")
    return {
        "missing": None,
        "passed": audit.get("passed") is True,
        "how": phrase("{}{}, halfbyte {}", words(audit, "date"), f", against the source {against}" if against else
                      ", without the source", words(audit, "versions", "halfbyte")),
        "findings": table(["Check", "Result", "Details"], [
            [row.get("check"), Markdown(_LEVELS.get(str(row.get("level")), "not stated")), row.get("text")]
            for row in rows(audit, "findings")
        ]),
        **evidence,
    }  # fmt: skip
