"""Refuse to serve a checkpoint that engines would load without an error but answer from incorrectly.

The config and headers are checked with those checks of `halfbyte audit` that need no tensor values: they know how vLLM
matches the ignore list and which scales it leaves uninitialized. The other checks come from the last audit's findings.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from halfbyte.audit.checks import config, ignore, structure
from halfbyte.audit.findings import Finding
from halfbyte.audit.inputs import Contents, Evidence
from halfbyte.audit.run import RESULT
from halfbyte.checkpoint.folder import CONFIG, Checkpoint
from halfbyte.checkpoint.output_folder import FOLDER, PLAN
from halfbyte.checkpoint.untrusted_files import json_object
from halfbyte.errors import CheckFailedError, CheckpointError
from halfbyte.evidence.measured_files import MEASURED, changed_file, content, unread_nbytes
from halfbyte.families.model import Model
from halfbyte.ui.escape import pasted

# Checks whose failure means wrong answers; after a failure of any other check the checkpoint can still be served.
_GARBAGE = ("structure", "coverage", "ignore", "config", "index", "bytes", "scales", "fused", "vllm")

_MOST_HASHED_NBYTES = 4 * 10**9  # takes a few seconds; more hashing would delay the start
_TOKENIZERS = ("tokenizer.json", "tiktoken.model", "tokenizer.model", "vocab.json")


def refuse_invalid(checkpoint: Checkpoint, model: Model) -> None:
    """Refuse a missing input scale, and an ignore list or a declared format that contradicts the tensors."""
    contents = Contents(model.family, model.linears, model.plain, ())
    evidence = Evidence(checkpoint, unreadable={}, index=None, contents=contents, made=None, journal={}, plan=None)
    for finding in (*structure(evidence), *ignore(evidence), *config(evidence)):
        if finding.level == "bad":
            raise CheckpointError(_sentence(finding), where=str(checkpoint.root), fix=finding.fix)


def audited(folder: Path) -> list[str]:
    """Return warnings about the last audit; raise CheckFailedError if a failed check means wrong answers."""
    command = f"halfbyte audit {pasted(folder)}"
    if not (folder / FOLDER / PLAN).exists():
        limit = "its result is stored only for checkpoints that halfbyte wrote"
        return [f"no audit result found: `{command}` checks more than the headers; {limit}"]
    audit = json_object(folder / FOLDER / RESULT)
    if not audit or audit.get("plan") != json_object(folder / FOLDER / PLAN).get("fingerprint"):
        return [f"not audited: only the headers were checked, `{command}` checks the values too"]
    findings = cast("list[Any]", audit["findings"]) if isinstance(audit.get("findings"), list) else []
    rows = [cast("dict[str, Any]", row) for row in findings if isinstance(row, dict)]
    failed = [row for row in rows if row.get("level") == "bad"]
    for row in failed:
        if row.get("check") in _GARBAGE:
            what = f"its last audit failed: {row.get('check')}: {row.get('text')}"
            raise CheckFailedError(what, where=str(folder / FOLDER / RESULT), fix=f"fix it, then run {command}")
    why = _other_files(folder, audit)  # failures count until another audit passes, even if files changed
    changed = [f"{why}: {command}"] if why else []
    return [
        *(f"! its last audit failed: {row.get('check')}: {row.get('text')}; once fixed: {command}" for row in failed),
        *changed,
    ]


def _other_files(folder: Path, audit: Mapping[str, Any]) -> str:
    """Return why the audit may not apply to the current files; empty if it does."""
    if unread_nbytes(folder) > _MOST_HASHED_NBYTES:
        return "its files were copied or changed after the audit and not hashed again"
    if not audit.get(MEASURED):
        return "its audit does not record which files it checked"
    changed = changed_file(audit, content(folder), weights_only=True)
    return f"not audited since {changed} changed" if changed else ""


def refuse_unfinished(folder: Path) -> None:
    """Refuse an output of an unfinished run, which has no config.json yet."""
    if (folder / FOLDER).is_dir() and not (folder / CONFIG).exists():
        fix = "run the `halfbyte quantize` or `halfbyte prune` command that wrote it again, to resume"
        raise CheckpointError("this output is incomplete", where=str(folder), fix=fix)


def without_tokenizer(folder: Path) -> list[str]:
    """Return a warning if the folder has no tokenizer."""
    if any((folder / name).exists() for name in _TOKENIZERS):
        return []
    return ["! the folder has no tokenizer, so engines fail to start: copy it from the source checkpoint"]


def _sentence(finding: Finding) -> str:
    example = f" ({finding.examples[0]})" if finding.examples else ""
    return f"{finding.text}{example}: {finding.why}"
