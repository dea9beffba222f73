"""How far a run is: a line when a probe starts, with the time that is left, and one when it has ended."""

from __future__ import annotations

from halfbyte.terminal.console import Output
from halfbyte.validate.probe.kinds import Probe
from halfbyte.validate.probe.marks import visible
from halfbyte.validate.probe.report import Result

_LONG_S = 10.0
_MINUTE, _HOUR = 60.0, 3600.0


def duration(seconds: float) -> str:
    """Return a time as people say it."""
    if seconds < 2 * _MINUTE:
        return f"{seconds:.0f} s"
    return f"{seconds / _MINUTE:.0f} min" if seconds < 2 * _HOUR else f"{seconds / _HOUR:.1f} h"


class Progress:
    """Says on stderr what is asked now, and until when."""

    def __init__(self, out: Output) -> None:
        self._out = out
        self._ended = 0

    def starts(self, probe: Probe, number: int, total: int, left_s: float) -> None:
        """Say which probe runs; the time left once three of them have shown how good the estimate is."""
        rest = f", about {duration(left_s)} left" if self._ended >= 3 and left_s > _LONG_S else ""  # noqa: PLR2004
        self._out.note(f"[{number}/{total}] {probe.title}{rest}")

    def ended(self, result: Result) -> None:
        """Say what a probe found."""
        measured = visible(result.finding.measured)  # it may quote the server
        verdict = result.finding.verdict.value
        time = f" in {duration(result.seconds)}" if result.seconds >= 1 else ""
        if not result.traces:
            self._out.note(f"        {result.probe.title}: {verdict}, {measured}")
            return
        self._ended += 1
        self._out.note(f"        {verdict}{time}: {measured}")
