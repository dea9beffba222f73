"""All stages of a release on one screen: their state, time and last line; line by line where there is no terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from halfbyte.release.record import Record
from halfbyte.terminal.console import SYMBOLS, Output
from halfbyte.terminal.harmless import harmless

LINES_EVERY_S = 30.0  # of progress, where there is no terminal
_SECONDS_ALONE = 10.0  # below, a tenth of a second matters
_DURATION_WIDTH, _GAP = len("59 min 59 s"), 2
_WAITS, _RUNS, _SKIPPED = " ", "▸", "-"
_STYLES = {SYMBOLS["good"]: "green", SYMBOLS["bad"]: "red", SYMBOLS["note"]: "yellow", _RUNS: "bold", _SKIPPED: "dim"}


@dataclass(slots=True)
class _Row:
    mark: str = _WAITS
    seconds: float | None = None
    text: str = ""


def duration(seconds: float) -> str:
    """Return a time as people say it."""
    if seconds < _SECONDS_ALONE:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    hours, minutes = whole // 3600, whole % 3600 // 60
    if hours:
        return f"{hours} h {minutes:02d} min"
    return f"{minutes} min {whole % 60:02d} s" if minutes else f"{whole} s"


class View:
    """What is shown while a release runs."""

    def __init__(self, out: Output, names: Sequence[str]) -> None:
        self._out = out
        self._rows = {name: _Row() for name in names}
        self._width = max(map(len, names), default=0)
        self._live: Any = None
        self._begun = self._said_at = 0.0
        self._said = ""

    def __enter__(self) -> View:
        if sys.stderr.isatty() and not self._out.quiet:
            from rich.live import Live  # noqa: PLC0415 - only where there is a terminal

            self._live = Live(self._table(), console=self._out.stderr_console(), auto_refresh=False)
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.update(self._table(), refresh=True)
            self._live.stop()

    def begin(self, name: str, command: str) -> Callable[[Callable[[], str]], Callable[[], None]]:
        """Say that a stage begins; return what makes a watcher out of a function that tells its last line."""
        self._begun = self._said_at = time.monotonic()
        self._said = ""
        self._set(name, _RUNS, 0.0, command)
        self._line(name, command)

        def watching(last_line: Callable[[], str]) -> Callable[[], None]:
            return lambda: self._look(name, last_line())

        return watching

    def end(self, record: Record) -> None:
        """Say how a stage ended."""
        mark, text = _ended(record)
        kept = record.state in ("kept", "skipped")
        self._set(record.name, mark, None if kept else record.seconds, text)
        took = "" if kept or record.seconds is None else f" in {duration(record.seconds)}"
        more = f": {record.why}" if record.why else ""
        self._line(record.name, f"{mark} {record.state}{took}{more}")

    def _look(self, name: str, line: str) -> None:
        now = time.monotonic()
        row = self._rows[name]
        row.seconds, row.text = now - self._begun, line or row.text
        if self._live is not None:
            self._live.update(self._table(), refresh=True)
        elif line and line != self._said and now - self._said_at >= LINES_EVERY_S:
            self._said, self._said_at = line, now
            self._line(name, line)

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

        # The last line of a stage has what is left: rich would take the room that it lacks from all columns alike.
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
        return table


def _ended(record: Record) -> tuple[str, str]:
    if record.state == "skipped":
        return _SKIPPED, f"skipped: {record.why}"
    if record.state == "failed":
        return SYMBOLS["bad"], record.why
    mark = SYMBOLS["note"] if record.exit_code else SYMBOLS["good"]
    return mark, "kept" if record.state == "kept" and not record.why else record.why
