"""A stage's command as a process of its own: its words go into a log, whose last line says how far it is."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from halfbyte.serve.engine_log import clean
from halfbyte.serve.then import run_in_front
from halfbyte.terminal.console import SYMBOLS

_TAIL_NBYTES = 1 << 14
_LINE_CHARACTERS = 160
_LABELLED = re.compile(r"\s+(?:where|fix) ")


@dataclass(frozen=True, slots=True)
class StageLog:
    """The log of a stage; what earlier runs left in it is not looked at."""

    path: Path
    begin: int

    @staticmethod
    def opened(path: Path, command: str) -> StageLog:
        """Begin a log, after what earlier runs left in it."""
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as file:
            begin = file.tell()
            file.write(f"# {time.strftime('%Y-%m-%d %H:%M:%S')}\n$ {command}\n".encode())
            return StageLog(path, begin)

    def last_line(self) -> str:
        """Return the last line, without what could change a terminal."""
        lines = [line for line in self.lines() if line and not line.startswith(("# ", "$ "))]
        return lines[-1][:_LINE_CHARACTERS] if lines else ""

    def lines(self) -> list[str]:
        """Return the last lines of this run."""
        try:
            with self.path.open("rb") as file:
                end = file.seek(0, os.SEEK_END)
                file.seek(max(self.begin, end - _TAIL_NBYTES))
                text = file.read(_TAIL_NBYTES).decode(errors="replace")
        except OSError:
            return []
        return [clean(line).rstrip() for line in re.split(r"[\r\n]", text)]

    def error(self) -> str:
        """Return the sentence of the last error, or the last line where there is none."""
        lines = self.lines()
        mark = f"{SYMBOLS['bad']} "
        at = max((number for number, line in enumerate(lines) if line.startswith(mark)), default=None)
        if at is None:
            return self.last_line()
        said = [lines[at].removeprefix(mark)]
        for line in lines[at + 1 :]:  # further lines of the sentence stand under the first
            if not line.startswith("  ") or _LABELLED.match(line):
                break
            said.append(line.strip())
        return " ".join(said)


def child_environment(more: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return our environment for a command whose lines shall be seen when they are written."""
    return {**os.environ, "PYTHONUNBUFFERED": "1", "NO_COLOR": "1", **(more or {})}


def run_child(
    command: Sequence[str], log: StageLog, more: Mapping[str, str] | None, meanwhile: Callable[[], None]
) -> int:
    """Run a command to its end; return its exit code. When we end, however, it ends too."""
    with log.path.open("ab", buffering=0) as file:
        return run_in_front(command, child_environment(more), log=file, meanwhile=meanwhile)
