"""What the loop test of a pruned checkpoint found: who publishes it was perhaps not there when it was asked."""

from __future__ import annotations

import json
from typing import Any

from halfbyte.audit.evidence import Evidence
from halfbyte.audit.findings import Finding, bad, good, note
from halfbyte.folders import FOLDER, LOOPS

CHECK = "loops"


def loops(evidence: Evidence) -> list[Finding]:
    """Nothing here is asked again: `halfbyte loops OUT --against SRC` does that."""
    if evidence.made is None or evidence.made.recipe.prune is None:
        return []
    ask = f"halfbyte loops {evidence.root} --against SRC"
    try:
        found: Any = json.loads((evidence.root / FOLDER / LOOPS).read_text(encoding="utf-8"))
        level, said = found["level"], f"{int(found['loops'])} of {int(found['texts'])} texts loop"
        said += f", {int(found['short'])} end after a few words"
    except FileNotFoundError:
        return [note(CHECK, f"not measured; {ask}")]
    except (OSError, ValueError, TypeError, KeyError):
        return [note(CHECK, f"{FOLDER}/{LOOPS} cannot be read; {ask}")]
    if level == "bad":
        why = "the source does not do this as often: open-ended answers may never end"
        return [
            bad(CHECK, said, why=why, fix="keep or restore more experts (halfbyte prune --restore), then ask again")
        ]
    return [good(CHECK, said) if level == "good" else note(CHECK, f"{said}: too few texts to tell; {ask}")]
