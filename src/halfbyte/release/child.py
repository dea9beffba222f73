"""Run a stage's command as a child process that writes to a log; the last line shows its progress."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from halfbyte.serve.engine_log import clean
from halfbyte.serve.engine_process import run_foreground
from halfbyte.ui.console import SYMBOLS

_TAIL_NBYTES = 1 << 14
_LINE_CHARACTERS = 160
_LABELLED = re.compile(r"\s+(?:where|fix) ")


@dataclass(frozen=True, slots=True)
class StageLog:
    """The log of a stage, from the start of this run."""

    path: Path
    start: int  # byte offset

    @staticmethod
    def opened(path: Path, command: str) -> StageLog:
        """Open a log and append to earlier runs."""
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as file:
            start = file.tell()
            file.write(f"# {time.strftime('%Y-%m-%d %H:%M:%S')}\n$ {command}\n".encode())
            return StageLog(path, start)

    def last_line(self) -> str:
        """Return the last line, without terminal control sequences."""
        lines = [line for line in self.lines() if line and not line.startswith(("# ", "$ "))]
        return lines[-1][:_LINE_CHARACTERS] if lines else ""

    def lines(self) -> list[str]:
        """Return the last lines written by this run."""
        try:
            with self.path.open("rb") as file:
                end = file.seek(0, os.SEEK_END)
                file.seek(max(self.start, end - _TAIL_NBYTES))
                text = file.read(_TAIL_NBYTES).decode(errors="replace")
        except OSError:
            return []
        return [clean(line).rstrip() for line in re.split(r"[\r\n]", text)]

    def error(self) -> str:
        """Return the message of the last error, or the last line if there is no error."""
        lines = self.lines()
        mark = f"{SYMBOLS['bad']} "
        at = max((number for number, line in enumerate(lines) if line.startswith(mark)), default=None)
        if at is None:
            return self.last_line()
        message = [lines[at].removeprefix(mark)]
        for line in lines[at + 1 :]:  # continuation lines are indented
            if not line.startswith("  ") or _LABELLED.match(line):
                break
            message.append(line.strip())
        return " ".join(message)


def child_environment(more: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return our environment for a child process, with unbuffered and uncolored output."""
    return {**os.environ, "PYTHONUNBUFFERED": "1", "NO_COLOR": "1", **(more or {})}


def run_child(
    command: Sequence[str], log: StageLog, more: Mapping[str, str] | None, meanwhile: Callable[[], None]
) -> int:
    """Run a command and return its exit code. It is stopped if this process exits for any reason."""
    with log.path.open("ab", buffering=0) as file:
        return run_foreground(command, child_environment(more), log=file, meanwhile=meanwhile)
