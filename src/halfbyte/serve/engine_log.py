"""Parse an engine's log: the current startup phase and the root-cause error.

A log is untrusted input: names in a checkpoint, a template or a request can put anything into it. Control characters
are removed before display, long lines are truncated, and only the last lines are kept in memory.
"""

from __future__ import annotations

import re
import unicodedata
from collections import deque
from dataclasses import dataclass
from pathlib import Path

from halfbyte.serve.log_file import FIRST_LINE

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
