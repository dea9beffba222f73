"""Report the recorded result of the loop test of a pruned checkpoint."""

from __future__ import annotations

from halfbyte.audit.findings import Finding, bad, good, note
from halfbyte.audit.inputs import Evidence
from halfbyte.checkpoint.output_folder import FOLDER
from halfbyte.errors import UsageError
from halfbyte.evidence.loops import Loops
from halfbyte.evidence.record import InvalidRecordError
from halfbyte.plan.prune_record import read_record

CHECK = "loops"


def loops(evidence: Evidence) -> list[Finding]:
    """Read the recorded result; `halfbyte loops OUT --against SRC` runs the test."""
    if evidence.made is None:
        return []
    command, when = f"halfbyte loops {evidence.root} --against SRC", ""
    try:
        if evidence.made.recipe.prune is not None:
            result = Loops.read(evidence.root / FOLDER / Loops.file)
        else:
            record = read_record(evidence.root)
            if record is None:
                return []
            result, when = None if record.loops is None else Loops.of(record.loops), " (measured on its pruned source)"
    except FileNotFoundError:
        result = None
    except (InvalidRecordError, UsageError):
        return [note(CHECK, f"{FOLDER}/{Loops.file} cannot be read; {command}")]
    if result is None:
        return [note(CHECK, f"not measured; {command}")]
    text = f"{result.loops} of {result.texts} texts loop, {result.short} end after a few words{when}"
    if result.level == "bad":
        why = "the source loops less often: open-ended answers may never end"
        fix = "keep or restore more experts (halfbyte prune --restore), then repeat the test"
        return [bad(CHECK, text, why=why, fix=fix)]
    if result.level == "good":
        return [good(CHECK, text)]
    return [note(CHECK, f"{text}: too few texts for a verdict; {command}")]
