"""The record of `halfbyte release`: the stages, the gates and the verdict."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from halfbyte.evidence.record import MeasuredRecord, Record

Verdict = Literal["ACCEPT", "REGRESSION", "UNPROVEN", "ANOMALOUS", "INFEASIBLE", "UNFINISHED"]
Outcome = Literal["passed", "failed", "unproven", "anomalous", "infeasible", "not measured", "not run"]
State = Literal["done", "kept", "failed", "skipped"]


@dataclass(frozen=True, slots=True)
class GateResult:
    """The result of one gate."""

    name: str
    required: str
    measured: str
    outcome: Outcome
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StageRecord:
    """The result of one stage."""

    name: str
    command: tuple[str, ...]  # with OUT, SRC and URL for folders and addresses
    key: str  # digest of its inputs; a stage with the same key is not run again
    result: str | None = None  # the file it writes, relative to the output folder
    sha256: str | None = None  # of that file
    outputs_sha256: str | None = None  # of `quantize`: the digest of its output files
    exit_code: int | None = None
    started: str | None = None  # ISO 8601, UTC
    seconds: float | None = None
    state: State
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Release(MeasuredRecord):
    """The verdict of a release with its gates, reasons and next steps, and the stages up to it."""

    kind = "release"
    file = "release.json"
    created_by = "halfbyte release SRC {out} -r RECIPE"
    measured = "server"

    halfbyte: str  # version
    plan: str | None  # fingerprint
    recipe: str | None  # name
    forced: bool  # published without ACCEPT
    verdict: Verdict
    headline: str  # the verdict, with a note if accuracy is inconclusive
    why: tuple[str, ...]
    next: tuple[str, ...]
    gates: tuple[GateResult, ...]
    stages: tuple[StageRecord, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AfterRelease(Record):
    """The stages after the verdict, in their own file because provenance.json holds the hash of release.json."""

    kind = "after"
    file = "release/after.json"
    created_by = "halfbyte release SRC {out} -r RECIPE"

    stages: tuple[StageRecord, ...]
