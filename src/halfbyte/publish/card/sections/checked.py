"""What `halfbyte audit` found in the files, and which evidence lies beside the weights."""

from __future__ import annotations

from typing import Any

from halfbyte.folders import FOLDER
from halfbyte.publish.card.known import Known
from halfbyte.publish.card.markdown import Markdown, code, phrase, table
from halfbyte.publish.card.reading import rows, words
from halfbyte.publish.evidence import PLACES

_LEVELS = {"good": "pass", "note": "note", "bad": "**FAIL**"}


def facts(known: Known) -> dict[str, Any]:
    """Return the findings and the files."""
    found = known.get("audit")
    files = [[code(f"{FOLDER}/{place.file}"), "there" if known.get(kind) is not None else known.missing(kind)]
             for kind, place in PLACES.items() if kind not in ("prune", "loops") or known.pruned]  # fmt: skip
    shown = {"files": table(["File", ""], files)}
    if found is None:
        return {"missing": known.missing("audit"), **shown}
    against = words(found, "against")
    return {
        "missing": None,
        "passed": found.get("passed") is True,
        "how": phrase("{}{}, halfbyte {}", words(found, "date"), f", against the source {against}" if against else
                      ", without the source", words(found, "versions", "halfbyte")),
        "findings": table(["Check", "", "Found"], [
            [row.get("check"), Markdown(_LEVELS.get(str(row.get("level")), "not stated")), row.get("text")]
            for row in rows(found, "findings")
        ]),
        **shown,
    }  # fmt: skip
