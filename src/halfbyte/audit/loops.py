"""Report the recorded result of the loop test of a pruned checkpoint."""

from __future__ import annotations

from typing import Any

from halfbyte.audit.findings import Finding, bad, good, note
from halfbyte.audit.inputs import Evidence
from halfbyte.checkpoint.output_folder import FOLDER, LOOPS
from halfbyte.checkpoint.untrusted_files import read_json
from halfbyte.errors import UsageError
from halfbyte.plan.prune_record import read_record

CHECK = "loops"


def loops(evidence: Evidence) -> list[Finding]:
    """Read the recorded result; `halfbyte loops OUT --against SRC` runs the test."""
    if evidence.made is None:
        return []
    command, when = f"halfbyte loops {evidence.root} --against SRC", ""
    try:
        if evidence.made.recipe.prune is not None:
            result: Any = read_json(evidence.root / FOLDER / LOOPS)
        else:
            record = read_record(evidence.root)
            if record is None:
                return []
            result, when = record.loops, " (measured on its pruned source)"
        if result is None:
            return [note(CHECK, f"not measured; {command}")]
        level, text = result["level"], f"{int(result['loops'])} of {int(result['texts'])} texts loop"
        text += f", {int(result['short'])} end after a few words{when}"
    except FileNotFoundError:
        return [note(CHECK, f"not measured; {command}")]
    except (OSError, ValueError, TypeError, KeyError, UsageError):
        return [note(CHECK, f"{FOLDER}/{LOOPS} cannot be read; {command}")]
    if level == "bad":
        why = "the source loops less often: open-ended answers may never end"
        fix = "keep or restore more experts (halfbyte prune --restore), then repeat the test"
        return [bad(CHECK, text, why=why, fix=fix)]
    return [good(CHECK, text) if level == "good" else note(CHECK, f"{text}: too few texts for a verdict; {command}")]
