"""Engine logs: create the file, follow the startup phase, and find the root-cause error with its known cause and fix.

The first line identifies a log that halfbyte wrote; earlier logs are kept, and other files are never overwritten. A
lock on the open file, inherited by the engine, marks a log that is still being written.

A log is untrusted input: names in a checkpoint, a template or a request can put anything into it. Control characters
are removed before display, long lines are truncated, and only the last lines are kept in memory.
"""

from __future__ import annotations

import contextlib
import fcntl
import re
import time
import unicodedata
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any, BinaryIO

from halfbyte.errors import UsageError

FIRST_LINE = "# the log of an engine that `halfbyte serve --run` started"
DEFAULT = Path("serve.log")
_ANOTHER = "choose another file with --log"

KEPT_LINES = 2000
LINE_CHARACTERS = 4000
SHOWN_CHARACTERS = 600
_CHUNK_NBYTES = 1 << 20

READY = "ready"
# Log lines of vLLM and SGLang that announce a startup phase. "{}" takes the two numbers of a progress bar.
_PHASES: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), phase)
    for pattern, phase in (
        (r"checkpoint shards:.*\| *(\d+)/(\d+)", "loading weights {} of {}"),
        (r"Starting to load model|Load weight begin|Loading model from scratch", "loading weights"),
        (r"Capturing CUDA graphs.*\| *(\d+)/(\d+)", "capturing CUDA graphs {} of {}"),
        (r"Capturing CUDA graphs|Capture cuda graph begin|Profiling CUDA graph memory", "capturing CUDA graphs"),
        (r"for the compilation|Compile and warming up|Dynamo bytecode transform|Compiling a graph", "compiling"),
        (r"Available KV cache memory|KV cache size|KV Cache is allocated", "profiling memory"),
        (r"Model loading took|Loading weights took|Load weight end", "profiling memory"),
        (r"Application startup complete|server is fired up", READY),
    )
)
_PREFIXES = re.compile(
    r"^(?:\(\w[^()]{0,80} pid=\d+\) ?|\[[^\]]{1,60}\] )*"  # which process: vLLM's, SGLang's
    r"(?:(?P<level>[A-Z]{4,8}) \d\d-\d\d \d\d:\d\d:\d\d (?:\[[^\]]{1,80}\] ?)?)?"
)
_QUIET_LEVELS = ("DEBUG", "INFO", "WARNING")
_RAISED = re.compile(r"^(?:[A-Za-z_][\w]*\.)*(?:\w*(?:Error|Exception|Exit|Interrupt|Enabled)|Unsupported)(?:: |$)")
_PARSER_ERROR = re.compile(r"^[\w.]+(?: \w+)?: error: ")
_CHAIN = ("During handling of the above exception", "The above exception was the direct cause")
# Messages of processes that only report the failure of another process.
_REPEATS = re.compile(
    r"root cause|See stack trace|Engine core initialization failed|EngineDeadError|EngineCore encountered an issue"
    r"|Engine process failed to start|WorkerProc initialization failed|Worker failed with error"
    r"|died unexpectedly|SystemExit|KeyboardInterrupt|CancelledError"
)
_ESCAPES = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]|(?:\x1b\]|\x9d)[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)?|\x1b[@-Z\\-_]"
)

FILE = Path(__file__).parent / "data" / "known_errors.yaml"


def default_log(port: int) -> Path:
    """Return serve.log, or serve-PORT.log if another engine is writing serve.log."""
    return Path(f"serve-{port}.log") if DEFAULT.is_file() and is_written(DEFAULT) else DEFAULT


def new_log(path: Path) -> BinaryIO:
    """Open a new log; rename an earlier log to PATH.1 (.2 and so on) and refuse to replace any other file."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists() or path.is_symlink():
            _move_away(path)
        file = path.open("xb", buffering=0)
    except OSError as error:
        what = f"cannot write the log: {error.strerror or error}"
        raise UsageError(what, where=str(path), fix=_ANOTHER) from None
    with contextlib.suppress(OSError):  # a file system without locks
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    file.write(f"{FIRST_LINE}, {time.strftime('%Y-%m-%d %H:%M:%S')}\n".encode())
    return file


def _move_away(path: Path) -> None:
    """Rename an earlier log to the first free number; refuse other files and logs that are still being written."""
    if not path.is_file():
        raise UsageError("the log must be a file", where=str(path), fix=_ANOTHER)
    with path.open("rb") as file:
        start = file.read(len(FIRST_LINE))
    if start and start != FIRST_LINE.encode():  # an empty file may be replaced
        what = "this file is not a log of halfbyte and will not be overwritten"
        raise UsageError(what, where=str(path), fix=_ANOTHER)
    if is_written(path):
        raise UsageError("another engine is writing this log", where=str(path), fix=_ANOTHER)
    if not start:
        path.unlink()
        return
    earlier = (path.with_name(f"{path.name}.{number}") for number in count(1))
    path.rename(next(target for target in earlier if not target.exists() and not target.is_symlink()))


def is_written(path: Path) -> bool:
    """Return whether an engine is writing a log."""
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # a file system without locks
        return False
    return False


def clean(text: str) -> str:
    """Remove escape sequences, control characters and formatting characters that affect surrounding text."""
    without = _ESCAPES.sub("", text).replace("\t", "    ")
    return "".join(letter for letter in without if unicodedata.category(letter) not in ("Cc", "Cf", "Cs", "Zl", "Zp"))


@dataclass(frozen=True, slots=True)
class _Line:
    """One line without the engine's prefix, and the process that wrote it."""

    process: str
    level: str
    text: str


class EngineLog:
    """A growing log file, read incrementally."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.phase = "starting"
        self._lines: deque[_Line] = deque(maxlen=KEPT_LINES)
        self._read = 0
        self._rest = ""

    def follow(self) -> bool:
        """Read new output; return whether there was any."""
        grew = False
        with self.path.open("rb") as file:
            file.seek(self._read)
            while chunk := file.read(_CHUNK_NBYTES):
                grew = True
                self._read += len(chunk)
                self._take(chunk.decode(errors="replace"))
        return grew

    def lines(self) -> list[str]:
        """Return the last lines, cleaned and without the engine's prefixes, including an incomplete one."""
        rest = [_split(self._rest).text] if self._rest.strip() else []
        return [line.text for line in self._lines] + rest

    def error(self) -> str:
        """Return the engine's root-cause error, or the last line of its log."""
        lines = [*self._lines, *([_split(self._rest)] if self._rest.strip() else [])]
        message = _root_cause(lines) or next((line.text for line in reversed(lines) if line.text.strip()), "")
        return message if len(message) <= SHOWN_CHARACTERS else f"{message[:SHOWN_CHARACTERS]} ..."

    def _take(self, text: str) -> None:
        *complete, rest = re.split(r"[\r\n]+", self._rest + text)  # progress bars end in a carriage return
        self._rest = rest[:LINE_CHARACTERS]
        for raw in complete:
            if raw.strip() and not raw.startswith(FIRST_LINE):  # written by halfbyte, not the engine
                line = _split(raw[:LINE_CHARACTERS])
                self._lines.append(line)
                self.phase = phase_of(line.text) or self.phase
        self.phase = phase_of(clean(self._rest)) or self.phase  # the incomplete line has a bar's latest state


def phase_of(line: str) -> str | None:
    """Return the startup phase that a line announces, if any."""
    for pattern, phase in _PHASES:
        match = pattern.search(line)
        if match:
            return phase.format(*match.groups())
    return None


def _split(raw: str) -> _Line:
    """Split a line into process, level and text, without the engine's prefix (process, level, time, file)."""
    text = clean(raw)
    match = _PREFIXES.match(text)
    if match is None:
        return _Line("", "", text)
    prefix = text[: match.end()]
    return _Line(prefix.partition(")")[0] if prefix.startswith("(") else "", match["level"] or "", text[match.end() :])


def _root_cause(lines: list[_Line]) -> str:
    """Return the first exception that terminated its process and does not repeat another one.

    Of an exception chain, return the last: it is the one raised for the user.
    """
    cause = ""
    last_quiet = {line.process: at for at, line in enumerate(lines) if _is_work(line)}
    for at, line in enumerate(lines):
        survived = bool(line.process) and last_quiet.get(line.process, -1) > at
        if line.level in _QUIET_LEVELS or survived:
            continue
        if _PARSER_ERROR.match(line.text):
            return line.text
        if not _RAISED.match(line.text):
            continue
        if _REPEATS.search(line.text):
            if cause:
                return cause
            continue
        cause = _full_message(lines, at)
        if not _chained(lines, at):
            return cause
    return cause


def _is_work(line: _Line) -> bool:
    """Return whether a line shows that its process still works, and so survived earlier errors."""
    return line.level in _QUIET_LEVELS and "[shutdown]" not in line.text


def _full_message(lines: list[_Line], at: int) -> str:
    """Return an exception's message, with the lines below it if the first line is incomplete, as in pydantic."""
    text = lines[at].text
    below = [line.text.strip() for line in lines[at + 1 : at + 5] if line.process == lines[at].process]
    if below and re.search(r"\d+ validation errors?\b", text):
        message = " ".join(below).partition(" [type=")[0]
        return message.removeprefix("Value error, ").removeprefix("Assertion failed, ")
    return f"{text} {below[0]}" if text.endswith(":") and below and below[0] else text


def _chained(lines: list[_Line], at: int) -> bool:
    """Return whether the same process reports another exception chained to this one."""
    own = [line for line in lines[at + 1 : at + 12] if line.process == lines[at].process]
    return any(line.text.startswith(_CHAIN) for line in own)


@dataclass(frozen=True, slots=True)
class KnownError:
    """An error's pattern, cause and fix; `seen` marks errors that a real engine wrote in one of our runs."""

    name: str
    pattern: re.Pattern[str]
    cause: str
    fix: str
    source: str
    seen: bool


@cache
def known_errors() -> tuple[KnownError, ...]:
    """Read the list in order: special cases come before general ones."""
    import yaml  # noqa: PLC0415 - needed only after a failed start

    rows: list[dict[str, Any]] = yaml.safe_load(FILE.read_text(encoding="utf-8"))["errors"]
    return tuple(KnownError(pattern=re.compile(row.pop("pattern")), **row) for row in rows)


def known_error(error: str, lines: Iterable[str] = ()) -> KnownError | None:
    """Return the known error that matches an error line, else the first one that matches a line of the log."""
    match = _matching(error)
    return match or next((known for known in map(_matching, lines) if known is not None), None)


def _matching(line: str) -> KnownError | None:
    return next((known for known in known_errors() if known.pattern.search(line)), None)
