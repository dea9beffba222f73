"""Print results to stdout, as text or JSON, and messages to stderr. No other module prints."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import IO, TYPE_CHECKING, Any, Literal

from halfbyte.ui.escape import harmless, harmless_json, shortened
from halfbyte.ui.units import duration

if TYPE_CHECKING:
    from rich.console import Console

    from halfbyte.errors import HalfbyteError

Level = Literal["good", "note", "bad"]
SYMBOLS: Mapping[Level, str] = {"good": "✓", "note": "!", "bad": "✗"}
_STYLES: Mapping[Level, str] = {"good": "green", "note": "yellow", "bad": "red"}
_GUTTER = "   "
FIRST_LINE_S = 1.5  # delay of a phase's first line without a terminal
LINES_EVERY_S = 15.0  # interval of a phase's further lines without a terminal
RATE_AFTER_S = 2.0  # no rate is shown before
_REFRESH_S = 0.1


@dataclass(frozen=True, slots=True)
class Column:
    """A table column: the key of its value in a row, its heading, and whether it holds numbers."""

    key: str
    heading: str
    number: bool = False


@dataclass(slots=True)
class Output:
    """The output of a command. The global options set its fields."""

    as_json: bool = False
    quiet: bool = False
    verbose: bool = False
    no_color: bool = False

    def table(self, value: Sequence[Mapping[str, Any]], columns: Sequence[Column]) -> None:
        """Print rows as a table, or as JSON with all their keys."""
        if self.as_json:
            return self._json(value)
        cells = [[_cell(row[column.key]) for column in columns] for row in value]
        if sys.stdout.isatty():
            self._fancy_table(cells, columns)
        else:
            _print_aligned(cells, columns)
        return None

    def facts(self, value: Mapping[str, Any], lines: Sequence[tuple[str, str]]) -> None:
        """Print labelled lines, or `value` as JSON."""
        if self.as_json:
            return self._json(value)
        lines = [(label, _cell(text)) for label, text in lines]
        if sys.stdout.isatty():
            self._fancy_facts(lines)
        else:
            width = max((len(label) for label, _ in lines), default=0)
            for label, text in lines:
                print(harmless(f"{label:<{width}}{_GUTTER}{text}".rstrip()))
        return None

    def text(self, text: str, value: Any) -> None:
        """Print text, or `value` as JSON. Text is escaped only on a terminal."""
        if self.as_json:
            return self._json(value)
        text = harmless(text) if sys.stdout.isatty() else text
        print(text, end="" if text.endswith("\n") else "\n")
        return None

    def verdicts(self, sentences: Sequence[tuple[Level, str]]) -> None:
        """Print sentences with their symbols to stdout. JSON output already contains them."""
        if self.as_json:
            return
        for level, sentence in sentences:
            self._say(sys.stdout, SYMBOLS[level], sentence, style=_STYLES[level])

    def note(self, text: str) -> None:
        """Print a message to stderr, unless quiet."""
        if not self.quiet:
            sys.stdout.flush()  # keeps the order if both streams go to one file
            print(harmless(text), file=sys.stderr)

    def hint(self, command: str) -> None:
        """Print the next useful command."""
        if not self.quiet:
            sys.stdout.flush()
            self._say(sys.stderr, "next:", command, style="dim")

    def error(self, error: HalfbyteError) -> None:
        """Print what happened, where, and the fix. With -v, also print the traceback."""
        if self.verbose:
            self.trace(error)
        self._say(sys.stderr, SYMBOLS["bad"], shortened(error.what), style=_STYLES["bad"])
        for label, text in (("where", error.where), ("fix", error.fix)):
            if text:
                self._say(sys.stderr, f"  {label:<5}", shortened(text), style="dim")

    def trace(self, error: BaseException) -> None:
        """Print a traceback on stderr."""
        import traceback

        print(harmless("".join(traceback.format_exception(error))), end="", file=sys.stderr)

    def progress(self, doing: str) -> Bar:
        """Return a progress bar: live on a terminal, one line per step otherwise. `doing` is shown at once."""
        return Bar(self, doing)

    def activity(self, doing: str) -> Activity:
        """Return a live line with the current phase, its rate and the time left."""
        return Activity(self, doing)

    def waiting(self) -> StatusLine:
        """Return a status line for waits: live on a terminal, one line per change otherwise."""
        return StatusLine(self)

    def stderr_console(self) -> Console:
        """Return a rich console on stderr, for live displays."""
        return self._console(sys.stderr)

    def _json(self, value: Any) -> None:
        print(harmless_json(json.dumps(value, indent=2, ensure_ascii=False)))

    def _say(self, stream: IO[str], mark: str, text: str, *, style: str) -> None:
        if not stream.isatty():
            indented = "\n" + " " * (len(mark) + 1)  # aligns further lines with the first
            print(harmless(f"{mark} {text}").replace("\n", indented), file=stream)
            return
        from rich.table import Table

        grid = Table.grid(padding=(0, 1))
        grid.add_column(style=style, no_wrap=True)
        grid.add_column(overflow="fold")
        grid.add_row(mark, _literal(text))
        self._console(stream).print(grid)

    def _fancy_table(self, cells: Sequence[Sequence[str]], columns: Sequence[Column]) -> None:
        from rich.table import Table

        table = Table(box=None, pad_edge=False, padding=(0, len(_GUTTER), 0, 0), header_style="bold")
        for column in columns:
            table.add_column(column.heading, justify="right" if column.number else "left", overflow="fold")
        for row in cells:
            table.add_row(*map(_literal, row))
        self._console(sys.stdout).print(table)

    def _fancy_facts(self, lines: Sequence[tuple[str, str]]) -> None:
        from rich.table import Table

        grid = Table.grid(padding=(0, len(_GUTTER), 0, 0))
        grid.add_column(style="bold", no_wrap=True)
        grid.add_column(overflow="fold")
        for label, text in lines:
            grid.add_row(_literal(label), _literal(text))
        self._console(sys.stdout).print(grid)

    def _console(self, stream: IO[str]) -> Console:
        from rich.console import Console

        plain = self.no_color or bool(os.environ.get("NO_COLOR"))
        return Console(file=stream, no_color=plain, highlight=False, color_system=None if plain else "auto")


class Activity:
    """The current phase of a command, with its progress, rate and time left.

    On a terminal this is one live line. Otherwise each phase prints a line after FIRST_LINE_S and then every
    LINES_EVERY_S. A thread prints them, because a library call may take a minute.
    """

    def __init__(self, out: Output, doing: str) -> None:
        self._out = out
        self._rich: Any = None
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._next_line_s = 0.0
        self._start(doing)

    def __enter__(self) -> Activity:
        if self._out.quiet:
            return self
        if sys.stderr.isatty():
            self._rich = self._out.stderr_console().status(_literal(self.line()))
            self._rich.start()
        self._thread = threading.Thread(target=self._refresh, name="halfbyte-progress", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
        if self._rich is not None:
            self._rich.stop()

    def begin(self, doing: str) -> None:
        """Start another phase, with its own count and rate."""
        with self._lock:
            self._start(doing)
        if self._rich is not None:
            self._rich.update(_literal(self.line()))

    def at(self, done: float, total: float, unit: str, *, at_most: bool = False) -> None:
        """Set the phase's progress. With `at_most`, it may finish before reaching the total."""
        with self._lock:
            self._done, self._total, self._unit, self._at_most = done, total, unit, at_most

    def step(self, line: str) -> None:
        """Print a line for a finished step, above the live line."""
        if self._rich is not None:
            self._rich.console.print(_literal(line))
        else:
            self._out.note(line)
            self._next_line_s = max(self._next_line_s, time.monotonic() - self._begun + LINES_EVERY_S)

    def line(self) -> str:
        """Return the text of the live line."""
        with self._lock:
            seconds = time.monotonic() - self._begun
            text = f"{self._doing}, {duration(seconds)}"
            if not self._total:
                return text
            text = f"{self._doing}: {self._done:,.0f} of {self._total:,.0f} {self._unit}, {duration(seconds)}"
            if self._done and seconds >= RATE_AFTER_S:
                rate = self._done / seconds
                text += f", {rate:,.1f} {self._unit}/s" if rate >= 1 else f", {duration(1 / rate)} each"
                left = (self._total - self._done) / rate
                text += f", {'at most ' * self._at_most}about {duration(left)} left" if left else ""
            return text

    def _start(self, doing: str) -> None:
        # One line: a newline in a file name must not start another.
        self._doing, self._begun = doing.replace("\n", "\\n"), time.monotonic()
        self._done = self._total = 0.0
        self._unit, self._at_most = "", False
        self._next_line_s = FIRST_LINE_S

    def _refresh(self) -> None:
        while not self._ended.wait(_REFRESH_S):
            if self._rich is not None:
                self._rich.update(_literal(self.line()))
            elif time.monotonic() - self._begun >= self._next_line_s:
                self._next_line_s += LINES_EVERY_S
                self._out.note(self.line())


class Bar:
    """A progress bar for bytes, with the current phase, rate and time left. Finished steps scroll above it.

    Before the first byte, it shows the phase and its elapsed time.
    """

    def __init__(self, out: Output, doing: str) -> None:
        self._out = out
        self._doing = doing
        self._activity: Activity | None = None
        self._rich: Any = None
        self._task: Any = None

    def __enter__(self) -> Bar:
        self._show_activity()
        return self

    def __exit__(self, *_: object) -> None:
        self._end_activity()
        self._end_bar()

    def doing(self, phase: str) -> None:
        """Set the current phase."""
        self._doing = phase
        if self._rich is not None:
            self._rich.update(self._task, description=_literal(phase).markup)
        elif self._activity is not None:
            self._activity.begin(phase)

    def at(self, done: int, total: int) -> None:
        """Set the progress between two steps."""
        if done > 0:
            self._show_bar(done, total)
        else:
            self._show_activity()
        if self._rich is not None:
            self._rich.update(self._task, completed=done, total=total)

    def step(self, line: str, done: int, total: int) -> None:
        """Print a line for a finished step, and set the progress."""
        self.at(done, total)
        if self._rich is not None:
            self._rich.console.print(_literal(line))
        elif self._activity is not None:
            self._activity.step(line)

    def _show_activity(self) -> None:
        if self._activity is None:
            self._end_bar()
            self._activity = self._out.activity(self._doing).__enter__()

    def _end_activity(self) -> None:
        if self._activity is not None:
            self._activity.__exit__()
            self._activity = None

    def _show_bar(self, done: int, total: int) -> None:
        """Replace the activity with the bar, on a terminal."""
        if self._rich is not None or self._out.quiet or not sys.stderr.isatty():
            return
        self._end_activity()
        from rich import progress as rich

        columns = (rich.TextColumn("{task.description}"), rich.BarColumn(), rich.DownloadColumn())
        times = (rich.TransferSpeedColumn(), rich.TimeRemainingColumn())
        self._rich = rich.Progress(*columns, *times, console=self._out.stderr_console())
        self._task = self._rich.add_task(_literal(self._doing).markup, completed=done, total=total)
        self._rich.start()

    def _end_bar(self) -> None:
        if self._rich is not None:
            self._rich.stop()
            self._rich = None


class StatusLine:
    """The awaited event and the elapsed time: a live line on a terminal, one line per change otherwise."""

    def __init__(self, out: Output) -> None:
        self._out = out
        self._rich: Any = None
        self._last = ""

    def __enter__(self) -> StatusLine:
        if sys.stderr.isatty() and not self._out.quiet:
            self._rich = self._out.stderr_console().status("")
            self._rich.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._rich is not None:
            self._rich.stop()

    def show(self, what: str, seconds: float) -> None:
        """Show the awaited event and the elapsed seconds."""
        text = f"{what}, {seconds:.0f} s"
        if self._rich is not None:
            self._rich.update(_literal(text))
        elif what != self._last:
            self._last = what
            self._out.note(text)


def _literal(text: str) -> Any:
    """Escape text, and wrap it so that rich does not read square brackets as markup."""
    from rich.text import Text

    return Text(harmless(text))


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.2f}"
    if isinstance(value, (list, tuple)):
        return ", ".join(map(_cell, value)) or "-"  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
    return str(value).replace("\n", "\\n")  # untrusted names must not start a new row


def _print_aligned(cells: Sequence[Sequence[str]], columns: Sequence[Column]) -> None:
    rows = [[column.heading for column in columns], *cells]
    widths = [max(len(row[i]) for row in rows) for i in range(len(columns))]
    for row in rows:
        padded = [
            text.rjust(width) if column.number else text.ljust(width)
            for text, width, column in zip(row, widths, columns, strict=True)
        ]
        print(harmless(_GUTTER.join(padded).rstrip()))


@dataclass(frozen=True, slots=True)
class Advice:
    """One recommendation: good, a note, or bad (halfbyte is unusable here; comes with a fix)."""

    level: Level
    text: str
    fix: str = ""

    def as_dict(self) -> dict[str, str]:
        """Return the data that `--json` prints."""
        return asdict(self)
