"""Progress of a run: one line when a probe starts, with the remaining time, and one when it ends."""

from __future__ import annotations

from halfbyte.probe.kinds import Probe
from halfbyte.probe.marks import visible
from halfbyte.probe.report import Result
from halfbyte.ui.console import Output

_LONG_S = 10.0
_MINUTE, _HOUR = 60.0, 3600.0


def duration(seconds: float) -> str:
    """Format a duration."""
    if seconds < 2 * _MINUTE:
        return f"{seconds:.0f} s"
    return f"{seconds / _MINUTE:.0f} min" if seconds < 2 * _HOUR else f"{seconds / _HOUR:.1f} h"


class Progress:
    """Print the current probe and the remaining time on stderr."""

    def __init__(self, out: Output) -> None:
        self._out = out
        self._ended = 0

    def starts(self, probe: Probe, number: int, total: int, left_s: float) -> None:
        """Print the start of a probe; show the remaining time once three probes have corrected the estimate."""
        remaining = f", about {duration(left_s)} left" if self._ended >= 3 and left_s > _LONG_S else ""  # noqa: PLR2004
        self._out.note(f"[{number}/{total}] {probe.title}{remaining}")

    def ended(self, result: Result) -> None:
        """Print the result of a probe."""
        measured = visible(result.finding.measured)  # it may quote the server
        verdict = result.finding.verdict.value
        taken = f" in {duration(result.seconds)}" if result.seconds >= 1 else ""
        if not result.traces:
            self._out.note(f"        {result.probe.title}: {verdict}, {measured}")
            return
        self._ended += 1
        self._out.note(f"        {verdict}{taken}: {measured}")
