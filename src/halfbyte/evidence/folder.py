"""Read all evidence of an output folder, the only source of numbers for the gates, the card and the report.

A file that is missing, invalid or measured on other bytes is not evidence: each result lists the SHA-256 of the files
it was measured on (measured_files.py). `missing` holds the reason and the command that creates the evidence.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TypeVar

from halfbyte.checkpoint.folder import CONFIG
from halfbyte.checkpoint.output_folder import FOLDER
from halfbyte.errors import CheckpointError
from halfbyte.evidence.audit import Audit
from halfbyte.evidence.benchmark import Benchmark
from halfbyte.evidence.comparison import Comparison
from halfbyte.evidence.coverage import Coverage
from halfbyte.evidence.evaluation import Evaluation
from halfbyte.evidence.launches import Launches
from halfbyte.evidence.loops import Loops
from halfbyte.evidence.measured_files import changed_file, content, decides_weights
from halfbyte.evidence.plan import PlanSummary, PruneSummary
from halfbyte.evidence.probes import Probes
from halfbyte.evidence.provenance import Provenance
from halfbyte.evidence.record import InvalidRecordError, MeasuredRecord, Record
from halfbyte.evidence.release import Release
from halfbyte.ui.escape import pasted

NOT_MEASURED = "not measured"  # the reason if there is no file
KINDS: Mapping[str, type[Record]] = {
    kind.kind: kind
    for kind in (
        PlanSummary, Coverage, PruneSummary, Loops, Audit, Comparison, Launches, Probes, Evaluation, Benchmark,
        Release, Provenance,
    )
}  # fmt: skip
_R = TypeVar("_R", bound=Record)


@dataclass(frozen=True, slots=True)
class Missing:
    """Why evidence is missing, and the command that creates it."""

    why: str
    command: str


@dataclass(frozen=True, slots=True)
class Evidence:
    """The evidence of an output folder: the record of each kind, or why it is missing."""

    out: Path
    records: Mapping[str, Record]
    missing: Mapping[str, Missing]

    def get(self, kind: type[_R]) -> _R | None:
        """Return the record of a kind, or None if it is missing."""
        record = self.records.get(kind.kind)
        return record if isinstance(record, kind) else None

    def path(self, kind: type[Record]) -> Path:
        """Return the path of a kind of evidence."""
        return self.out / FOLDER / kind.file


def read_evidence(out: Path) -> Evidence:
    """Read all evidence of a folder. Raise CheckpointError if it holds no finished checkpoint.

    Files without a cached hash are read once; call `cli.hash_progress.hash_output` first to show progress.
    """
    if not (out / CONFIG).is_file():
        fix = "pass the output folder of a finished `halfbyte quantize`"
        raise CheckpointError("no finished checkpoint in this folder", where=str(out), fix=fix)
    found: dict[str, Record] = {}
    missing: dict[str, Missing] = {}
    now = cache(lambda: content(out))  # hashes only if there is a measurement
    for name, kind in KINDS.items():
        plan = found.get(PlanSummary.kind)
        try:
            record = kind.read(out / FOLDER / kind.file)
            _refuse_other_plan(record, plan.fingerprint if isinstance(plan, PlanSummary) else None)
            _refuse_other_files(record, now)
        except FileNotFoundError:
            why = NOT_MEASURED
        except InvalidRecordError as error:
            why = error.what
        else:
            found[name] = record
            continue
        missing[name] = Missing(why, kind.created_by.format(out=pasted(out)))
    return Evidence(out, found, missing)


def to_measure(evidence: Evidence) -> dict[str, Missing]:
    """Return the missing evidence, except files that the recipe does not produce."""
    plan = evidence.get(PlanSummary)
    unused: set[str] = set()
    if plan is None or plan.choices.calibrate is None:
        unused.add(Coverage.kind)
    if plan is None or plan.choices.prune is None:
        unused.add(PruneSummary.kind)
    return {kind: gap for kind, gap in evidence.missing.items() if kind not in unused or gap.why != NOT_MEASURED}


def not_produced(evidence: Evidence, kind: type[Record]) -> bool:
    """Whether a kind of evidence is missing because the plan's recipe does not produce it."""
    planned = evidence.get(PlanSummary) is not None
    return planned and kind.kind in evidence.missing and kind.kind not in to_measure(evidence)


def _refuse_other_plan(record: Record, fingerprint: str | None) -> None:
    """Raise InvalidRecordError if a result names another plan."""
    recorded = record.plan if isinstance(record, (Audit, Release, Provenance)) else None
    if recorded is not None and fingerprint is not None and recorded != fingerprint:
        raise InvalidRecordError(f"it belongs to another plan, {recorded}")


def _refuse_other_files(record: Record, now: Callable[[], Mapping[str, str]]) -> None:
    """Raise InvalidRecordError if a result was measured on files that have changed since.

    An audit or a comparison depends on weights and formats ("weights"). A server's answers also depend on tokenizer,
    chat template and sampling ("server"). A provenance lists all output files ("outputs").
    """
    if isinstance(record, Provenance):
        files = {name: output.sha256 for name, output in record.outputs.items() if decides_weights(name)}
    elif isinstance(record, MeasuredRecord):
        files = record.measured_files
    else:
        return
    if not files:
        raise InvalidRecordError("it does not list the files it was measured on")
    try:
        here = now()
    except CheckpointError as error:
        raise InvalidRecordError(f"cannot read the checkpoint: {error.what}") from None
    if changed := changed_file(files, here, weights_only=record.measured != "server"):
        raise InvalidRecordError(f"measured on other files: {changed} has changed since")
