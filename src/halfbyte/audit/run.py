"""Run every check that can run, and keep what they found beside the weights."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from halfbyte.audit import byte_checks, checks
from halfbyte.audit.calibration import STATISTICS, calibration, statistics
from halfbyte.audit.evidence import Evidence, gather
from halfbyte.audit.findings import Audit, Finding, bad, good, note
from halfbyte.audit.loops import loops
from halfbyte.audit.native import CHECK as VLLM
from halfbyte.audit.native import native, vllm_version
from halfbyte.audit.pruned import prune
from halfbyte.audit.repeat import repeat
from halfbyte.audit.seen import files_seen
from halfbyte.errors import CheckpointError, MachineError
from halfbyte.folders import FOLDER, PLAN
from halfbyte.prune.plan_file import PLAN as PRUNE_PLAN
from halfbyte.write import write_whole

RESULT = "audit.json"
DEFAULT_SAMPLE = 2
_NO_MODEL = "not checked: without a readable config.json no tensor has a role"
_NO_PLAN = f"not checked: no {FOLDER}/{PLAN}, so halfbyte did not make this"
_NO_SOURCE = "not checked: give --against SRC"
_NO_EXPERTS = "not checked: which experts these are is not known"


def _plan(evidence: Evidence) -> list[Finding]:
    """The folder says how it was made, and the recipe is the one that was planned with."""
    if PLAN in evidence.problems:
        why = "resuming and auditing rest on it"
        return [bad("plan", evidence.problems[PLAN], why=why, fix="restore plan.json, or make the checkpoint again")]
    if evidence.made is None:
        return [note("plan", "halfbyte did not make this folder: checks that need its plan are left out")]
    said = f"{evidence.made.fingerprint}, recipe {evidence.made.recipe.name}"
    if evidence.made.redacted:
        why = "local paths were taken out when it was published, and with them its hash"
        return [note("plan", f"{said}; that nobody changed the recipe is not checked", why)]
    return [good("plan", said)]


# What each check needs besides the files: the tensors in their roles, the plan of the run, the source.
CHECKS: Mapping[str, tuple[Callable[[Evidence], list[Finding]], str]] = {
    "plan": (_plan, ""),
    "structure": (checks.structure, "model"),
    "coverage": (checks.coverage, "plan"),
    "ignore": (checks.ignore, "model"),
    "config": (checks.config, ""),
    "index": (checks.index, ""),
    "bytes": (byte_checks.hashes, ""),
    "scales": (byte_checks.scales, "model"),
    "fused": (byte_checks.fused, "model"),
    STATISTICS: (statistics, ""),
    "calibration": (calibration, "plan"),
    "prune": (prune, "model"),
    "loops": (loops, ""),
    "kept": (byte_checks.kept, "source"),
}


def audit(out: Path, *, against: Path | None = None, sample: int = DEFAULT_SAMPLE, engine: str | None = None) -> Audit:
    """Check a checkpoint; `sample` is how many groups of linears of each layer are encoded again.

    With `engine="vllm"` the vLLM that is installed is asked as well.
    """
    begin = time.monotonic()
    if engine is not None:
        vllm_version()  # before hours of hashing
    files = files_seen(out)  # before they are read: a later change shows
    evidence = gather(out, against)
    findings = [finding for name, (check, needs) in CHECKS.items() for finding in _run(name, check, needs, evidence)]
    findings += _run("repeat", partial(repeat, sample=sample), "source", evidence)
    if engine is not None:
        findings += _run(VLLM, native, "", evidence)
    fingerprint = evidence.made.fingerprint if evidence.made else None
    return Audit(out, against, fingerprint, findings, time.monotonic() - begin, files)


def _run(name: str, check: Callable[[Evidence], list[Finding]], needs: str, evidence: Evidence) -> list[Finding]:
    """Run a check, or say why it cannot run."""
    if needs and evidence.contents is None:
        return [note(name, _NO_MODEL)]
    if needs in ("plan", "source") and evidence.made is None:
        return [note(name, _NO_PLAN)]
    if needs == "source" and evidence.plan is None:
        return [note(name, _NO_EXPERTS if PRUNE_PLAN in evidence.problems else _NO_SOURCE)]
    try:
        return check(evidence)
    except CheckpointError as error:  # a file that changed while it was read
        return [bad(name, error.what, why=error.where, fix=error.fix)]


def save(found: Audit) -> Path | None:
    """Write audit.json beside the plan, whole or not at all; nothing into a folder that halfbyte did not make."""
    if found.fingerprint is None:
        return None
    path = found.out / FOLDER / RESULT
    try:
        text = json.dumps(found.as_dict(), indent=1, ensure_ascii=False) + "\n"
        write_whole(path, text.encode("utf-8", "backslashreplace"))  # it may name a file whose name is not UTF-8
    except OSError as error:
        raise MachineError(f"cannot write: {error.strerror}", where=str(path), fix="check the permissions") from None
    return path
