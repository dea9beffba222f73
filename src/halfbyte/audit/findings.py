"""Audit results: the findings of each check, and the failed checks."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import halfbyte
from halfbyte.evidence import audit as evidence
from halfbyte.ui.console import Level
from halfbyte.ui.units import timestamp

MAX_EXAMPLES = 5  # printed; the file contains up to MAX_KEPT
MAX_KEPT = 100
RUN_AGAIN = "repeat the command that created it: it verifies every shard and rewrites the damaged ones"


@dataclass(frozen=True, slots=True)
class Finding(evidence.Finding):
    """One result of a check."""

    def sentence(self, width: int) -> str:
        """Format the finding: one line, followed by examples, why and fix if it is not good."""
        head = f"{self.check:<{width}}   {self.text}"
        if self.level == "good":
            return head
        indent = "\n" + " " * (width + 3)
        lines = [*self.examples[:MAX_EXAMPLES]]
        if len(self.examples) > MAX_EXAMPLES:
            rest = len(self.examples) - MAX_EXAMPLES  # a checkpoint of another program gets no audit.json
            lines.append(f"... and {'at least ' if len(self.examples) >= MAX_KEPT else ''}{rest} more; see --json")
        body = "".join(f"{indent}  {line}" for line in lines)
        tail = "".join(f"{indent}{label}   {text}" for label, text in (("why", self.why), ("fix", self.fix)) if text)
        return head + body + tail


@dataclass(frozen=True, slots=True)
class Audit:
    """All findings about one checkpoint."""

    out: Path
    against: Path | None
    fingerprint: str | None  # of the plan; None if the checkpoint was not created by halfbyte
    findings: Sequence[Finding]
    seconds: float
    measured: Mapping[str, Any]  # the files and their hashes, see measured_files.py

    @property
    def failed(self) -> list[str]:
        """Return the names of the checks that failed."""
        return list(dict.fromkeys(f.check for f in self.findings if f.level == "bad" and f.proven))

    @property
    def not_proven(self) -> list[str]:
        """Return the names of the checks with insufficient evidence."""
        return list(dict.fromkeys(finding.check for finding in self.findings if not finding.proven))

    @property
    def passed(self) -> bool:
        """Whether no check failed or has insufficient evidence."""
        return not self.failed and not self.not_proven

    @property
    def checks(self) -> list[str]:
        """Return the names of all checks."""
        return list(dict.fromkeys(finding.check for finding in self.findings))

    def summary(self) -> str:
        """Return the outcome in one line."""
        parts = (
            [f"{len(self.failed)} of {len(self.checks)} checks failed: {', '.join(self.failed)}"] if self.failed else []
        )
        if self.not_proven:
            names = ", ".join(self.not_proven)
            parts.append(f"{len(self.not_proven)} of {len(self.checks)} checks not proven: {names}")
        if parts:
            return "; ".join(parts)
        return f"no check failed, {sum(finding.level == 'good' for finding in self.findings)} passed"

    def sentences(self) -> list[tuple[Level, str]]:
        """Return the formatted findings with their levels, in the order of the checks."""
        width = max(len(finding.check) for finding in self.findings)
        return [(finding.level, finding.sentence(width)) for finding in self.findings]

    def record(self) -> evidence.Audit:
        """Return the contents of audit.json."""
        return evidence.Audit(
            date=timestamp(),
            versions={
                "halfbyte": halfbyte.__version__,
                "numpy": version("numpy"),
                "python": platform.python_version(),
            },
            plan=self.fingerprint,
            against=self.against.name if self.against else None,
            seconds=round(self.seconds, 3),
            passed=self.passed,
            **self.measured,
            findings=tuple(self.findings),
        )


def good(check: str, text: str) -> Finding:
    """Return a finding for a passed check."""
    return Finding(check, "good", text)


def note(check: str, text: str, why: str = "") -> Finding:
    """Return a finding for information, or for something that could not be checked."""
    return Finding(check, "note", text, why)


def bad(check: str, text: str, *, why: str, fix: str, examples: Sequence[str] = ()) -> Finding:
    """Return a finding for a failed check."""
    return Finding(check, "bad", text, why, fix, tuple(examples)[:MAX_KEPT])


def unproven(check: str, text: str, *, why: str, fix: str, examples: Sequence[str] = ()) -> Finding:
    """Return a finding for a check with insufficient evidence; the audit does not pass."""
    return Finding(check, "bad", f"not proven: {text}", why, fix, tuple(examples)[:MAX_KEPT], proven=False)


def count(number: int, noun: str) -> str:
    """Return a number with its noun in singular or plural."""
    plural = noun if noun.endswith("s") else f"{noun}s"
    return f"{number:,} {noun if number == 1 else plural}"
