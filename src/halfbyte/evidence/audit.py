"""The record of `halfbyte audit`: its findings about the files of a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from halfbyte.evidence.record import MeasuredRecord

Level = Literal["good", "note", "bad"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One result of a check; `why` describes the consequence, `fix` the next step."""

    check: str
    level: Level
    text: str
    why: str = ""
    fix: str = ""
    examples: tuple[str, ...] = ()
    proven: bool = True  # False: the evidence is insufficient, and the audit does not pass


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit(MeasuredRecord):
    """The findings of `halfbyte audit`, in the order of the checks."""

    kind = "audit"
    file = "audit.json"
    created_by = "halfbyte audit {out} --against SRC"
    measured = "weights"

    date: str  # ISO 8601, UTC
    versions: Mapping[str, str]  # halfbyte, numpy and python
    plan: str | None  # the fingerprint of the audited plan
    against: str | None  # the name of the source's folder
    seconds: float
    passed: bool  # no check failed or has insufficient evidence
    findings: tuple[Finding, ...]
