"""What the loop test of a pruned checkpoint found: who publishes it was perhaps not there when it was asked."""

from __future__ import annotations

from typing import Any

from halfbyte.audit.evidence import Evidence
from halfbyte.audit.findings import Finding, bad, good, note
from halfbyte.errors import UsageError
from halfbyte.folders import FOLDER, LOOPS
from halfbyte.prune.record import read_record
from halfbyte.source.foreign import read_json

CHECK = "loops"


def loops(evidence: Evidence) -> list[Finding]:
    """Nothing here is asked again: `halfbyte loops OUT --against SRC` does that."""
    if evidence.made is None:
        return []
    ask, when = f"halfbyte loops {evidence.root} --against SRC", ""
    try:
        if evidence.made.recipe.prune is not None:
            found: Any = read_json(evidence.root / FOLDER / LOOPS)
        else:
            record = read_record(evidence.root)
            if record is None:
                return []
            found, when = record.loops, " (before it was written anew)"
        if found is None:
            return [note(CHECK, f"not measured; {ask}")]
        level, said = found["level"], f"{int(found['loops'])} of {int(found['texts'])} texts loop"
        said += f", {int(found['short'])} end after a few words{when}"
    except FileNotFoundError:
        return [note(CHECK, f"not measured; {ask}")]
    except (OSError, ValueError, TypeError, KeyError, UsageError):
        return [note(CHECK, f"{FOLDER}/{LOOPS} cannot be read; {ask}")]
    if level == "bad":
        why = "the source does not do this as often: open-ended answers may never end"
        return [
            bad(CHECK, said, why=why, fix="keep or restore more experts (halfbyte prune --restore), then ask again")
        ]
    return [good(CHECK, said) if level == "good" else note(CHECK, f"{said}: too few texts to tell; {ask}")]
