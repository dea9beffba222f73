"""What an audit says: one finding a check, and the checks that failed among them."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path
from typing import Any

import halfbyte
from halfbyte.audit.seen import SEEN
from halfbyte.terminal.console import Level

MAX_EXAMPLES = 5  # on the screen; a file has them all up to MAX_KEPT
MAX_KEPT = 100
RUN_AGAIN = "run the command that made it again: it verifies every shard and makes the damaged ones anew"


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check found; `why` says what an engine would do about it, `fix` what to type next."""

    check: str
    level: Level
    text: str
    why: str = ""
    fix: str = ""
    examples: tuple[str, ...] = ()

    def sentence(self, width: int) -> str:
        """Return the finding as it is shown: a line, and below a failed one its examples, why and fix."""
        head = f"{self.check:<{width}}   {self.text}"
        if self.level == "good":
            return head
        indent = "\n" + " " * (width + 3)
        lines = [*self.examples[:MAX_EXAMPLES]]
        if len(self.examples) > MAX_EXAMPLES:
            lines.append(f"... and {len(self.examples) - MAX_EXAMPLES} more, in audit.json")
        body = "".join(f"{indent}  {line}" for line in lines)
        tail = "".join(f"{indent}{label}   {text}" for label, text in (("why", self.why), ("fix", self.fix)) if text)
        return head + body + tail


@dataclass(frozen=True, slots=True)
class Audit:
    """All findings about one checkpoint."""

    out: Path
    against: Path | None
    fingerprint: str | None  # of the plan; None where halfbyte did not make the checkpoint
    findings: Sequence[Finding]
    seconds: float
    files: Mapping[str, Sequence[int]]  # see seen.py

    @property
    def failed(self) -> list[str]:
        """Return the names of the checks that failed."""
        return list(dict.fromkeys(finding.check for finding in self.findings if finding.level == "bad"))

    @property
    def checks(self) -> list[str]:
        """Return the names of all checks."""
        return list(dict.fromkeys(finding.check for finding in self.findings))

    def summary(self) -> str:
        """Return the outcome in a line."""
        if self.failed:
            return f"{len(self.failed)} of {len(self.checks)} checks failed: {', '.join(self.failed)}"
        return f"no check failed, {sum(finding.level == 'good' for finding in self.findings)} passed"

    def sentences(self) -> list[tuple[Level, str]]:
        """Return what is shown, in the order of the checks."""
        width = max(len(finding.check) for finding in self.findings)
        return [(finding.level, finding.sentence(width)) for finding in self.findings]

    def as_dict(self) -> Mapping[str, Any]:
        """Return what audit.json holds."""
        return {
            "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "versions": {
                "halfbyte": halfbyte.__version__,
                "numpy": version("numpy"),
                "python": platform.python_version(),
            },
            "plan": self.fingerprint,
            "against": self.against.name if self.against else None,
            "seconds": round(self.seconds, 3),
            "passed": not self.failed,
            SEEN: self.files,
            "findings": [asdict(finding) for finding in self.findings],
        }


def good(check: str, text: str) -> Finding:
    """Return that a check passed."""
    return Finding(check, "good", text)


def note(check: str, text: str, why: str = "") -> Finding:
    """Return that something deserves a look, or could not be checked."""
    return Finding(check, "note", text, why)


def bad(check: str, text: str, *, why: str, fix: str, examples: Sequence[str] = ()) -> Finding:
    """Return that a check failed."""
    return Finding(check, "bad", text, why, fix, tuple(examples)[:MAX_KEPT])


def count(number: int, noun: str) -> str:
    """Return a number with its noun in the right form."""
    plural = noun if noun.endswith("s") else f"{noun}s"
    return f"{number:,} {noun if number == 1 else plural}"
