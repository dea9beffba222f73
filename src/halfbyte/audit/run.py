"""Run all applicable checks, and save the findings in the output folder."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from halfbyte.audit import byte_checks, checks
from halfbyte.audit.byte_checks import MB
from halfbyte.audit.calibration import STATISTICS, calibration, statistics
from halfbyte.audit.findings import Audit, Finding, bad, good, note, unproven
from halfbyte.audit.inputs import DERIVED, Evidence, gather
from halfbyte.audit.pruned import loops, prune
from halfbyte.audit.reencode_all import CHECK as ENCODED
from halfbyte.audit.reencode_all import encoded
from halfbyte.audit.reencode_sample import repeat
from halfbyte.audit.vllm_check import CHECK as VLLM
from halfbyte.audit.vllm_check import native, vllm_version
from halfbyte.checkpoint.output_folder import FOLDER, PLAN
from halfbyte.errors import CheckpointError, MachineError
from halfbyte.evidence.audit import Audit as AuditRecord
from halfbyte.evidence.measured_files import measured_in
from halfbyte.plan.prune_plan import PLAN as PRUNE_PLAN

if TYPE_CHECKING:
    from halfbyte.ui.console import Activity

DEFAULT_SAMPLE = 2
_ACTIVITIES = {  # of slow checks
    "bytes": "hashing the shards",
    "scales": "reading all scales",
    "kept": "comparing kept tensors with the source",
    ENCODED: "re-encoding all quantized tensors from the source",
    "repeat": "re-encoding a sample with the reference",
    VLLM: "loading every tensor name with vLLM in a separate process",
}
_NO_MODEL = "not checked: tensor roles require a readable config.json"
_NO_PLAN = f"not checked: no {FOLDER}/{PLAN}; pass --against SRC"
_NOT_DERIVED = "not checked: no plan"
_NO_SOURCE = "not checked: pass --against SRC"
_NO_EXPERTS = "not checked: the kept experts are unknown"


def _plan(evidence: Evidence) -> list[Finding]:
    """Check that the folder has a plan with an unchanged recipe."""
    if PLAN in evidence.problems:
        why = "resuming and auditing depend on it"
        return [bad("plan", evidence.problems[PLAN], why=why, fix="restore plan.json, or create the checkpoint again")]
    if evidence.derived is not None:
        return [note("plan", f"no {FOLDER}/{PLAN}; derived from both checkpoints: {evidence.derived.sentence()}")]
    if (why_not := evidence.problems.get(DERIVED)) is not None:
        why = "without a plan, the expected content of each tensor is unknown"
        fix = f"pass the source of this checkpoint, or audit a copy with its {FOLDER}/ folder"
        return [unproven("plan", f"no {FOLDER}/{PLAN}, and none can be derived: {why_not}", why=why, fix=fix)]
    if evidence.recorded is None:
        return [note("plan", f"no {FOLDER}/{PLAN}: checks against the source are skipped; pass --against SRC")]
    text = f"{evidence.recorded.fingerprint}, recipe {evidence.recorded.recipe.name}"
    if evidence.recorded.redacted:
        why = "local paths were removed when it was published, so its hash no longer matches"
        return [note("plan", f"{text}; changes of the recipe are not checked", why)]
    return [good("plan", text)]


# Each check and its prerequisite: tensor roles ("model"), the plan of the run, or the source.
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


def audit(
    out: Path,
    *,
    against: Path | None = None,
    sample: int = DEFAULT_SAMPLE,
    engine: str | None = None,
    activity: Activity | None = None,
) -> Audit:
    """Check a checkpoint; `sample` is the number of groups of linears per layer to re-encode.

    With `engine="vllm"`, the installed vLLM loads the checkpoint's names as well. `activity` shows the running check.
    """
    start = time.monotonic()
    if engine is not None:
        vllm_version()  # fails early, before hours of hashing
    evidence = gather(out, against)
    measured = _measured(out, evidence, activity)  # before the checks read weights, to detect later changes
    pending: dict[str, tuple[Callable[[Evidence], list[Finding]], str]] = dict(CHECKS)
    if evidence.derived is not None:
        pending[ENCODED] = (encoded, "source")
    pending["repeat"] = (partial(repeat, sample=sample), "source")
    if engine is not None:
        pending[VLLM] = (native, "")
    findings: list[Finding] = []
    for name, (check, needs) in pending.items():
        if activity is not None:
            activity.begin(_ACTIVITIES.get(name, f"checking {name}"))
            evidence = replace(evidence, how_far=activity.at)
        findings += _run(name, check, needs, evidence)
    fingerprint = evidence.recorded.fingerprint if evidence.recorded else None
    return Audit(out, against, fingerprint, findings, time.monotonic() - start, measured)


def _measured(out: Path, evidence: Evidence, activity: Activity | None) -> dict[str, Any]:
    """Hash the audited files, unless headers are unreadable, because such files may declare terabytes."""
    if evidence.unreadable:
        return {}
    if activity is None:
        return measured_in(out)
    activity.begin(_ACTIVITIES["bytes"])
    return measured_in(out, lambda step: activity.at(step.done_nbytes / MB, step.all_nbytes / MB, "MB"))


def _run(name: str, check: Callable[[Evidence], list[Finding]], needs: str, evidence: Evidence) -> list[Finding]:
    """Run a check, or return a note why it cannot run."""
    if needs and evidence.contents is None:
        return [note(name, _NO_MODEL)]
    if needs in ("plan", "source") and evidence.recipe is None:
        return [note(name, _NOT_DERIVED if DERIVED in evidence.problems else _NO_PLAN)]
    if needs == "source" and evidence.plan is None:
        return [note(name, _NO_EXPERTS if PRUNE_PLAN in evidence.problems else _NO_SOURCE)]
    try:
        return check(evidence)
    except CheckpointError as error:  # e.g. a file changed while it was read
        return [bad(name, error.what, why=error.where, fix=error.fix)]


def save(result: Audit) -> Path | None:
    """Write audit.json atomically next to the plan; write nothing for a checkpoint not created by halfbyte."""
    if result.fingerprint is None:
        return None
    path = result.out / FOLDER / AuditRecord.file
    try:
        result.record().write(path)
    except OSError as error:
        raise MachineError(f"cannot write: {error.strerror}", where=str(path), fix="check the permissions") from None
    return path
