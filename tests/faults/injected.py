"""Run commands with an injected fault: the plan passed to `faults.c`, and the result."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import struct
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).parent
WRITE, CREATE, SYNC, RENAME, UNLINK, MKDIR, RESERVE, READ, LOOK = (1 << bit for bit in range(9))
CHANGES = WRITE | CREATE | SYNC | RENAME | UNLINK | MKDIR | RESERVE  # all that can leave something half done
COUNT, KILL_BEFORE, KILL_HALFWAY, KILL_AFTER, FAIL_ONCE, FAIL_ON, SHORT, KILL_FIRST, JUMP = range(9)
_SHARED_NBYTES = 520


def built(folder: Path) -> Path | None:
    """Compile `faults.c`; return None without a compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        return None
    library = folder / "faults.so"
    words = [compiler, "-O1", "-Wall", "-Werror", "-shared", "-fPIC", "-o", library, HERE / "faults.c", "-ldl"]
    subprocess.run(words, check=True)
    return library


@dataclass(frozen=True)
class Fault:
    """A fault at one operation below a folder; earlier operations succeed."""

    folder: Path
    action: int = COUNT
    at: int = 0
    operations: int = CHANGES
    error: int = errno.EIO


@dataclass
class Ended:
    """The exit code and output of a command, the number of counted operations, and the injected fault."""

    code: int
    words: str
    seen: int = 0
    done: int = 0
    what: str = ""


@dataclass
class Job:
    """A running command; `wait` returns its end."""

    pid: int
    _forking: Forking
    _shared: Path
    _words: Path
    ended: Ended | None = field(default=None)

    def words(self) -> str:
        return self._words.read_text(encoding="utf-8", errors="replace") if self._words.exists() else ""

    def stop(self) -> None:
        """Stop all its threads; locks stay held."""
        os.kill(self.pid, signal.SIGSTOP)
        while any(_state(thread) != "T" for thread in Path(f"/proc/{self.pid}/task").iterdir()):
            time.sleep(0.001)

    def kill(self) -> Ended:
        """Send SIGKILL unless it has already exited."""
        if self.ended is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
        return self.wait()

    def wait(self) -> Ended:
        if self.ended is None:
            code = self._forking.answer("ended")
            seen, done, _, what = struct.unpack("3q496s", self._shared.read_bytes())
            self.ended = Ended(code, self.words(), seen, done, what.split(b"\0")[0].decode())
        return self.ended


class Forking:
    """Run commands in forked processes, one at a time, with all imports done."""

    def __init__(self, folder: Path, library: Path) -> None:
        self._folder = folder
        flow = HERE.parent / "flow"
        source = HERE.parents[1] / "src"
        path = os.pathsep.join(map(str, (source, HERE.parent, flow)))
        environment = {**os.environ, "LD_PRELOAD": str(library), "PYTHONPATH": path, "NUMBA_NUM_THREADS": "2"}
        self._server = subprocess.Popen(
            [sys.executable, HERE / "forking.py"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
            start_new_session=True,  # so that killing its group does not kill the tests
        )
        self._learned: set[tuple[str, ...]] = set()
        self._started = 0
        self._last: Job | None = None

    def start(
        self, *argv: object, fault: Fault | None = None, before: str = "", release=None, **environment: str
    ) -> Job:
        """Start a command. `before` is Python code that its process runs first; `release` are a release's arguments."""
        if self._last is not None:
            self._last.kill()  # a test that failed may have left it, and its answers are not those of the next one
        # A file for each command: leftovers of the last one may still read theirs.
        self._started += 1
        shared, words = self._folder / f"shared-{self._started}", self._folder / "words.txt"
        shared.write_bytes(bytes(_SHARED_NBYTES))
        words.unlink(missing_ok=True)
        kind = _kind(argv)
        learns = fault is None and kind not in self._learned and not before
        self._learned |= {kind} if learns else set()
        job = {
            "argv": [str(word) for word in argv],
            "words": str(words),
            "before": before,
            "plan": _text(fault, shared) if fault else "",
            "release": release,
            "environment": environment,
            "learn": str(self._folder / "modules") if learns else "",
        }
        assert self._server.stdin is not None
        self._server.stdin.write(json.dumps(job) + "\n")
        self._server.stdin.flush()
        self._last = Job(self.answer("started"), self, shared, words)
        return self._last

    def run(self, *argv: object, **how) -> Ended:
        """Run a command to completion."""
        return self.start(*argv, **how).wait()

    def answer(self, expected: str) -> int:
        """Return the number of the next answer, which must be of the expected kind."""
        assert self._server.stdout is not None
        about, number = self._server.stdout.readline().split()
        assert about == expected, f"{about} {number}, where it should say what has {expected}"
        return int(number)

    def close(self) -> None:
        assert self._server.stdin is not None
        if self._last is not None:
            self._last.kill()
        self._server.stdin.close()
        try:
            self._server.wait(90)
        except subprocess.TimeoutExpired:
            self._server.kill()
            raise


def _kind(argv: tuple[object, ...]) -> tuple[str, ...]:
    """Return the command and its options without values: such commands import the same modules."""
    words = [str(word) for word in argv]
    return (
        *[word for word in words if not word.startswith("-")][:1],
        *(word for word in words if word.startswith("-")),
    )


def _state(thread: Path) -> str:
    try:
        return (thread / "stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "T"  # it ended before


def _text(fault: Fault, shared: Path) -> str:
    return f"{fault.operations} {fault.at} {fault.action} {fault.error}\n{shared}\n{fault.folder}"
