"""Show the stages of a release in a live table: state, elapsed time, last log line, and total time.

Without a terminal, print one line per event. The time left is the sum of the estimates of the remaining stages; stages
without an estimate are listed by name.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from halfbyte.evidence.release import StageRecord
from halfbyte.ui.console import SYMBOLS, Output
from halfbyte.ui.escape import harmless
from halfbyte.ui.units import duration

LINES_EVERY_S = 30.0  # between progress lines without a terminal
_LEFT_EVERY_S = 5.0  # between updates of the running stage's own estimate
_DURATION_WIDTH, _GAP = len("59 min 59 s"), 2
_WAITS, _RUNS, _SKIPPED = " ", "▸", "-"
_TOTAL = "total"
_NAMED = 3  # stages listed by name if they have no estimate
_STYLES = {SYMBOLS["good"]: "green", SYMBOLS["bad"]: "red", SYMBOLS["note"]: "yellow", _RUNS: "bold", _SKIPPED: "dim"}


@dataclass(slots=True)
class _Row:
    mark: str = _WAITS
    seconds: float | None = None
    text: str = ""


class View:
    """The progress display of a release."""

    def __init__(self, out: Output, names: Sequence[str]) -> None:
        self._out = out
        self._rows = {name: _Row() for name in names}
        self._width = max(map(len, (*names, _TOTAL)))
        self._live: Any = None
        self._started = time.monotonic()
        self._begun = self._said_at = 0.0
        self._said = ""
        self._expected: dict[str, float] = {}
        self._seconds_left: Callable[[str], float | None] = lambda name: None
        self._own_estimate: tuple[float, float | None] = (
            0.0,
            None,
        )  # of the running stage: updated at, seconds left

    def __enter__(self) -> View:
        if sys.stderr.isatty() and not self._out.quiet:
            from rich.live import Live  # noqa: PLC0415 - only with a terminal

            self._live = Live(self._table(), console=self._out.stderr_console(), auto_refresh=False)
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.update(self._table(), refresh=True)
            self._live.stop()

    def expect(self, seconds: Mapping[str, float], seconds_left: Callable[[str], float | None]) -> None:
        """Set the estimates of the stages, and a function that returns the running stage's own estimate."""
        self._expected, self._seconds_left = dict(seconds), seconds_left
        for name, row in self._rows.items():
            if row.mark == _WAITS and seconds.get(name):
                row.text = f"about {duration(seconds[name])}"
        if self._live is not None:
            self._live.update(self._table(), refresh=True)
        elif seconds:
            self._line(_TOTAL, f"{duration(time.monotonic() - self._started)}, {self.total()}")

    def total(self) -> str:
        """Return the number of finished stages and the known time left."""
        ended = sum(row.mark not in (_WAITS, _RUNS) for row in self._rows.values())
        text = f"{ended} of {len(self._rows)} stages"
        open_ones = {name: row for name, row in self._rows.items() if row.mark in (_WAITS, _RUNS)}
        left = {name: self._left(name, row) for name, row in open_ones.items()}
        known = [seconds for seconds in left.values() if seconds is not None]
        unknown = [name for name, seconds in left.items() if seconds is None]
        if not left:
            return text
        if not any(known):
            return f"{text}, time left unknown: no earlier times for {_few(unknown)}" if unknown else text
        text += f", about {duration(sum(known))} left"
        return f"{text}, and {_few(unknown)} (not timed yet)" if unknown else text

    def _left(self, name: str, row: _Row) -> float | None:
        """Return the remaining time of a stage: its own estimate if it has one, else the expected time."""
        expected = self._expected.get(name)
        if row.mark == _WAITS:
            return expected
        now = time.monotonic()
        asked_at, left = self._own_estimate
        if now - asked_at >= _LEFT_EVERY_S:
            left = self._seconds_left(name)
            self._own_estimate = (now, left)
        if left is not None:
            return left
        spent = now - self._begun
        return expected - spent if expected is not None and expected > spent else None

    def begin(self, name: str, command: str) -> Callable[[Callable[[], str]], Callable[[], None]]:
        """Show that a stage starts. Return a function that turns a last-line callback into a progress callback."""
        self._begun = self._said_at = time.monotonic()
        self._said = ""
        self._own_estimate = (0.0, None)
        self._set(name, _RUNS, 0.0, command)
        self._line(name, command)

        def watch(last_line: Callable[[], str]) -> Callable[[], None]:
            return lambda: self._look(name, last_line())

        return watch

    def end(self, record: StageRecord) -> None:
        """Show the result of a stage."""
        mark, text = _ended(record)
        kept = record.state in ("kept", "skipped")
        self._set(record.name, mark, None if kept else record.seconds, text)
        took = "" if kept or record.seconds is None else f" in {duration(record.seconds)}"
        more = f": {record.why}" if record.why else ""
        self._line(record.name, f"{mark} {record.state}{took}{more}")
        if not kept:
            self._line(_TOTAL, f"{duration(time.monotonic() - self._started)}, {self.total()}")

    def _look(self, name: str, line: str) -> None:
        now = time.monotonic()
        row = self._rows[name]
        row.seconds, row.text = now - self._begun, line or row.text
        if self._live is not None:
            self._live.update(self._table(), refresh=True)
        elif now - self._said_at >= LINES_EVERY_S:
            self._line(name, line if line and line != self._said else f"running for {duration(now - self._begun)}")
            self._said, self._said_at = line, now

    def _set(self, name: str, mark: str, seconds: float | None, text: str) -> None:
        self._rows[name] = _Row(mark, seconds, text)
        if self._live is not None:
            self._live.update(self._table(), refresh=True)

    def _line(self, name: str, text: str) -> None:
        if self._live is None:
            self._out.note(f"{name:<{self._width}}   {text}".rstrip())

    def _live_width(self) -> int:
        return self._out.stderr_console().width

    def _table(self) -> Any:
        from rich.table import Table  # noqa: PLC0415
        from rich.text import Text  # noqa: PLC0415

        # The log line gets the remaining width; rich would otherwise shrink all columns.
        left = self._live_width() - (1 + self._width + _DURATION_WIDTH + 3 * _GAP)
        table = Table.grid(padding=(0, _GAP, 0, 0), pad_edge=False)
        table.add_column(no_wrap=True, width=1)
        table.add_column(no_wrap=True, width=self._width)
        table.add_column(no_wrap=True, width=_DURATION_WIDTH, justify="right")
        table.add_column(no_wrap=True, max_width=max(left, 1), overflow="ellipsis")
        for name, row in self._rows.items():
            style = _STYLES.get(row.mark, "dim")
            took = "" if row.seconds is None else duration(row.seconds)
            table.add_row(Text(row.mark, style), Text(name, style), took, Text(harmless(row.text), "dim"))
        table.add_row("", _TOTAL, duration(time.monotonic() - self._started), Text(self.total()))
        return table


def _few(names: Sequence[str]) -> str:
    """Return the first names and the number of the others."""
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {more} more" if more > 0 else "")


def _ended(record: StageRecord) -> tuple[str, str]:
    if record.state == "skipped":
        return _SKIPPED, f"skipped: {record.why}"
    if record.state == "failed":
        return SYMBOLS["bad"], record.why
    mark = SYMBOLS["note"] if record.exit_code else SYMBOLS["good"]
    return mark, "kept" if record.state == "kept" and not record.why else record.why
