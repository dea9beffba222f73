"""The only module that prints: data on stdout, words on stderr, and the same value as JSON when asked."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any, Literal

from halfbyte.terminal.harmless import harmless, harmless_json, shortened

if TYPE_CHECKING:
    from rich.console import Console

    from halfbyte.errors import HalfbyteError

Level = Literal["good", "note", "bad"]
SYMBOLS: Mapping[Level, str] = {"good": "✓", "note": "!", "bad": "✗"}
_STYLES: Mapping[Level, str] = {"good": "green", "note": "yellow", "bad": "red"}
_GUTTER = "   "


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table: the key of its value in a row, its heading, and whether it holds numbers."""

    key: str
    heading: str
    number: bool = False


@dataclass(slots=True)
class Output:
    """Where a command's answer goes and how it looks; the global options set its fields."""

    as_json: bool = False
    quiet: bool = False
    verbose: bool = False
    no_color: bool = False

    def table(self, value: Sequence[Mapping[str, Any]], columns: Sequence[Column]) -> None:
        """Show rows; as JSON the same rows with all their keys."""
        if self.as_json:
            return self._json(value)
        cells = [[_cell(row[column.key]) for column in columns] for row in value]
        if sys.stdout.isatty():
            self._fancy_table(cells, columns)
        else:
            _print_aligned(cells, columns)
        return None

    def facts(self, value: Mapping[str, Any], lines: Sequence[tuple[str, str]]) -> None:
        """Show labelled lines; as JSON the value they were made from."""
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
        """Show text, in a file as it is; as JSON the value that it spells."""
        if self.as_json:
            return self._json(value)
        text = harmless(text) if sys.stdout.isatty() else text
        print(text, end="" if text.endswith("\n") else "\n")
        return None

    def verdicts(self, sentences: Sequence[tuple[Level, str]]) -> None:
        """Show sentences with their symbols; they are data, so they go to stdout, but not twice into JSON."""
        if self.as_json:
            return
        for level, sentence in sentences:
            self._say(sys.stdout, SYMBOLS[level], sentence, style=_STYLES[level])

    def note(self, text: str) -> None:
        """Say something on stderr, unless quiet."""
        if not self.quiet:
            sys.stdout.flush()  # where both go into one file, words stay after the data they follow
            print(harmless(text), file=sys.stderr)

    def hint(self, command: str) -> None:
        """Name the next useful command."""
        if not self.quiet:
            sys.stdout.flush()
            self._say(sys.stderr, "next:", command, style="dim")

    def error(self, error: HalfbyteError) -> None:
        """Say what happened, where, and what to type next; with -v also how the program got there."""
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

    def progress(self) -> Bar:
        """Return a bar on a terminal, one line a step elsewhere, silence if quiet."""
        return Bar(self)

    def waiting(self) -> StatusLine:
        """Return a line that says what is waited for, one line a change elsewhere, silence if quiet."""
        return StatusLine(self)

    def stderr_console(self) -> Console:
        """Return rich's view of stderr, for what moves."""
        return self._console(sys.stderr)

    def _json(self, value: Any) -> None:
        print(harmless_json(json.dumps(value, indent=2, ensure_ascii=False)))

    def _say(self, stream: IO[str], mark: str, text: str, *, style: str) -> None:
        if not stream.isatty():
            below = "\n" + " " * (len(mark) + 1)  # further lines stand under the first
            print(harmless(f"{mark} {text}").replace("\n", below), file=stream)
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


class Bar:
    """Progress of long work: bytes, rate and time left; finished steps scroll by above it."""

    def __init__(self, out: Output) -> None:
        self._out = out
        self._rich: Any = None
        self._task: Any = None

    def __enter__(self) -> Bar:
        if sys.stderr.isatty() and not self._out.quiet:
            from rich import progress as rich

            columns = (rich.BarColumn(), rich.DownloadColumn(), rich.TransferSpeedColumn(), rich.TimeRemainingColumn())
            self._rich = rich.Progress(*columns, console=self._out.stderr_console())
            self._rich.start()
            self._task = self._rich.add_task("", total=None)
        return self

    def __exit__(self, *_: object) -> None:
        if self._rich is not None:
            self._rich.stop()

    def at(self, done: int, total: int) -> None:
        """Move the bar between two steps; without a terminal there is none."""
        if self._rich is not None:
            self._rich.update(self._task, completed=done, total=total)

    def step(self, line: str, done: int, total: int) -> None:
        """Say that a step is finished."""
        if self._rich is not None:
            self._rich.console.print(_literal(line))
            self._rich.update(self._task, completed=done, total=total)
        else:
            self._out.note(line)


class StatusLine:
    """What is waited for and how long already: on a terminal one line that changes, elsewhere a line a change."""

    def __init__(self, out: Output) -> None:
        self._out = out
        self._rich: Any = None
        self._said = ""

    def __enter__(self) -> StatusLine:
        if sys.stderr.isatty() and not self._out.quiet:
            self._rich = self._out.stderr_console().status("")
            self._rich.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._rich is not None:
            self._rich.stop()

    def show(self, what: str, seconds: float) -> None:
        """Say what is waited for now, after so many seconds."""
        text = f"{what}, {seconds:.0f} s"
        if self._rich is not None:
            self._rich.update(_literal(text))
        elif what != self._said:
            self._said = what
            self._out.note(text)


def _literal(text: str) -> Any:
    """Wrap text so that neither rich reads its square brackets as markup, nor a terminal anything else."""
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
    return str(value).replace("\n", "\\n")  # a row is a line: a stranger's name begins no other


def _print_aligned(cells: Sequence[Sequence[str]], columns: Sequence[Column]) -> None:
    rows = [[column.heading for column in columns], *cells]
    widths = [max(len(row[i]) for row in rows) for i in range(len(columns))]
    for row in rows:
        padded = [
            text.rjust(width) if column.number else text.ljust(width)
            for text, width, column in zip(row, widths, columns, strict=True)
        ]
        print(harmless(_GUTTER.join(padded).rstrip()))
