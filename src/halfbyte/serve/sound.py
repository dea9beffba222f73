"""A checkpoint that engines would load without a word and answer nonsense from gets no launch.

Config and headers are looked at with the checks of `halfbyte audit`, which know how vLLM matches the ignore list and
which scales it leaves as memory has them. What needs the values stands in the findings of the last audit.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

from halfbyte.audit.checks import config, ignore, structure
from halfbyte.audit.evidence import Contents, Evidence
from halfbyte.audit.findings import Finding
from halfbyte.audit.run import RESULT
from halfbyte.audit.seen import SEEN, files_seen
from halfbyte.errors import CheckFailedError, CheckpointError
from halfbyte.folders import FOLDER, PLAN
from halfbyte.json_file import json_object
from halfbyte.models.model import Model
from halfbyte.source.checkpoint import CONFIG, Checkpoint
from halfbyte.terminal.pasted import pasted

# Whose failure an engine turns into wrong answers; that of the others leaves a checkpoint that can be served.
_GARBAGE = ("structure", "coverage", "ignore", "config", "index", "bytes", "scales", "fused", "vllm")

_TOKENIZERS = ("tokenizer.json", "tiktoken.model", "tokenizer.model", "vocab.json")


def refuse_unsound(checkpoint: Checkpoint, model: Model) -> None:
    """Refuse what headers and config show: an absent input scale, a list or a format that the tensors contradict."""
    contents = Contents(model.architecture, model.linears, model.plain, ())
    evidence = Evidence(checkpoint, unreadable={}, index=None, contents=contents, made=None, journal={}, plan=None)
    for finding in (*structure(evidence), *ignore(evidence), *config(evidence)):
        if finding.level == "bad":
            raise CheckpointError(_sentence(finding), where=str(checkpoint.root), fix=finding.fix)


def audited(folder: Path) -> list[str]:
    """Return what to know of the last audit before serving; CheckFailedError where it found what engines trip over."""
    again = f"halfbyte audit {pasted(folder)}"
    if not (folder / FOLDER / PLAN).exists():
        said = "its findings are kept only beside the plan of what halfbyte made"
        return [f"not audited, as far as the folder tells: `{again}` checks more than the headers; {said}"]
    found = json_object(folder / FOLDER / RESULT)
    if not found or found.get("plan") != json_object(folder / FOLDER / PLAN).get("fingerprint"):
        return [f"not audited: only headers are looked at here, `{again}` checks the values too"]
    findings = cast("list[Any]", found["findings"]) if isinstance(found.get("findings"), list) else []
    rows = [cast("dict[str, Any]", row) for row in findings if isinstance(row, dict)]
    failed = [row for row in rows if row.get("level") == "bad"]
    for row in failed:
        if row.get("check") in _GARBAGE:
            what = f"its last audit failed: {row.get('check')}: {row.get('text')}"
            raise CheckFailedError(what, where=str(folder / FOLDER / RESULT), fix=f"mend it, then {again}")
    changed = found.get(SEEN) != files_seen(folder)  # what failed stays so until an audit says otherwise
    said = [f"not audited since its files were changed or copied: {again}"] if changed else []
    return [
        *(f"! its last audit failed: {row.get('check')}: {row.get('text')}; once mended: {again}" for row in failed),
        *said,
    ]


def refuse_unfinished(folder: Path) -> None:
    """Refuse an output whose run did not end: config.json is written last."""
    if (folder / FOLDER).is_dir() and not (folder / CONFIG).exists():
        fix = "run the command that made it again (the same `halfbyte quantize`): it goes on where it stopped"
        raise CheckpointError("this output is unfinished", where=str(folder), fix=fix)


def without_tokenizer(folder: Path) -> list[str]:
    """Return a warning where no tokenizer lies in the folder."""
    if any((folder / name).exists() for name in _TOKENIZERS):
        return []
    return ["! there is no tokenizer in the folder, so that engines stop at the start: copy the source's beside it"]


def _sentence(finding: Finding) -> str:
    example = f" ({finding.examples[0]})" if finding.examples else ""
    return f"{finding.text}{example}: {finding.why}"
