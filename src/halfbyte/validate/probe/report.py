"""probe.json: what was asked, of whom, and what came of it; for the card and the report."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from halfbyte.validate.endpoint import values_without_keys
from halfbyte.validate.probe.kinds import Finding, Probe, Verdict

FILE = "probe.json"
FORMAT = 1


@dataclass(frozen=True, slots=True)
class Result:
    """One probe and its finding."""

    probe: Probe
    finding: Finding
    seconds: float = 0.0
    traces: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        finding, probe = self.finding, self.probe
        return {
            "name": probe.name, "group": probe.group, "title": probe.title, "reason": probe.reason, "gate": probe.gate,
            "verdict": finding.verdict.value, "measured": finding.measured, "threshold": finding.threshold,
            "numbers": dict(finding.numbers), "shown": [asdict(one) for one in finding.shown], "cause": finding.cause,
            "seconds": round(self.seconds, 2), "traces": list(self.traces),
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Report:
    """The whole run."""

    head: Mapping[str, Any]
    results: Sequence[Result]

    def counted(self, verdict: Verdict, *, gates: bool = False) -> int:
        """Return how many probes ended so."""
        return sum(one.finding.verdict is verdict and (one.probe.gate or not gates) for one in self.results)

    @property
    def accepted(self) -> bool:
        """Whether something passed and no gate failed or broke."""
        bad = self.counted(Verdict.FAILED, gates=True) + self.counted(Verdict.BROKEN, gates=True)
        return not bad and self.counted(Verdict.PASSED) > 0

    def summary(self) -> str:
        """Return the last line."""
        counts = {one: self.counted(one) for one in Verdict}
        said = ", ".join(f"{count} {verdict.value}" for verdict, count in counts.items() if count)
        more = "; what was skipped is not passed" if counts[Verdict.SKIPPED] else ""
        return f"{len(self.results)} probes: {said}{more}"

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        return {
            "format": FORMAT,
            **self.head,
            "accepted": self.accepted,
            "counts": {one.value: self.counted(one) for one in Verdict},
            "probes": [one.as_dict() for one in self.results],
        }


def write_report(folder: Path, report: Report) -> None:
    """Write probe.json, whole or not at all."""
    part = folder / f"{FILE}.part"
    text = json.dumps(
        values_without_keys(report.as_dict()), indent=2
    )  # ASCII: halves of surrogate pairs must not stop it
    part.write_text(text + "\n", encoding="utf-8")
    part.replace(folder / FILE)
