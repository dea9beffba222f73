"""probe.json: the results of a run, for the card and the report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from halfbyte.evidence.measured_files import measured_on
from halfbyte.evidence.probes import ProbeResult, Probes, coverage
from halfbyte.probe.probe import Finding, Probe, Verdict

FILE = "probe.json"


@dataclass(frozen=True, slots=True)
class Result:
    """A probe and its finding."""

    probe: Probe
    finding: Finding
    seconds: float = 0.0
    traces: tuple[str, ...] = ()

    def record(self) -> ProbeResult:
        """Return the row of probe.json."""
        finding, probe = self.finding, self.probe
        return ProbeResult(
            name=probe.name,
            group=probe.group,
            title=probe.title,
            reason=probe.reason,
            gate=probe.gate,
            verdict=finding.verdict.value,
            measured=finding.measured,
            threshold=finding.threshold,
            numbers=finding.numbers,
            excerpts=finding.excerpts,
            cause=finding.cause,
            seconds=round(self.seconds, 2),
            traces=self.traces,
        )


@dataclass(frozen=True, slots=True)
class Report:
    """Results of a run."""

    head: Mapping[str, Any]
    results: Sequence[Result]

    def counted(self, verdict: Verdict, *, gates: bool = False) -> int:
        """Return the number of probes with this verdict."""
        return sum(result.finding.verdict is verdict and (result.probe.gate or not gates) for result in self.results)

    @property
    def accepted(self) -> bool:
        """Whether at least one probe passed and no gate failed or broke."""
        bad = self.counted(Verdict.FAILED, gates=True) + self.counted(Verdict.BROKEN, gates=True)
        return not bad and self.counted(Verdict.PASSED) > 0

    def covered(self) -> str:
        """Return how many probes ran, in total and by group."""
        covered = coverage([result.record() for result in self.results])
        groups = covered.by_group()
        return covered.sentence() + (f" (by group: {groups})" if groups else "")

    def summary(self) -> str:
        """Return the summary line."""
        counts = {verdict: self.counted(verdict) for verdict in Verdict}
        listed = ", ".join(f"{count} {verdict.value}" for verdict, count in counts.items() if count)
        note = "; skipped probes do not count as passed" if counts[Verdict.SKIPPED] else ""
        return f"{len(self.results)} probes: {listed}{note}"

    def record(self, measured: Mapping[str, Any] | None = None) -> Probes:
        """Return the contents of probe.json; `measured` has the files it was measured on."""
        return Probes(
            **self.head,
            accepted=self.accepted,
            counts={verdict.value: self.counted(verdict) for verdict in Verdict},
            probes=tuple(result.record() for result in self.results),
            **(measured or {}),
        )


def write_report(folder: Path, report: Report) -> None:
    """Write probe.json atomically."""
    report.record(measured_on(folder / FILE)).write(folder / FILE)
