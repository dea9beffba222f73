"""Run a command on an attack and check its time, memory, message and exit code.

Memory is the peak of this process (VmHWM), which the kernel can reset, minus the usage before.
"""

import contextlib
import signal
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import NamedTuple

SECONDS = 30  # on two busy cores; nearly all take a tenth of one
MEMORY_MB = 1_000  # a header of 100 MB is allowed, and its text and values are in memory for a moment
WORDS = 6_000  # characters of an error: a sentence, a place, a remedy; a name of a megabyte is shortened


class Hung(BaseException):
    """Raised by the alarm; nothing in the code under test catches it."""


class Took(NamedTuple):
    """Time and memory of a run."""

    seconds: float
    megabytes: float


def _peak_mb() -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1e3


@contextlib.contextmanager
def within(seconds: int) -> Generator[None]:
    """Fail if the block takes longer; restore an outer alarm afterwards."""

    def hung(*_: object) -> None:
        raise Hung

    old = signal.signal(signal.SIGALRM, hung)
    left, _ = signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    except Hung:
        raise AssertionError(f"it did not end within {seconds} s") from None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old)
        signal.setitimer(signal.ITIMER_REAL, left)


@contextlib.contextmanager
def bounded(seconds: int = SECONDS, megabytes: float = MEMORY_MB) -> Generator[list[Took]]:
    """Fail if the block takes longer or uses more memory."""
    took: list[Took] = []
    Path("/proc/self/clear_refs").write_text("5")
    before, begin = _peak_mb(), time.monotonic()
    with within(seconds):
        yield took
    took.append(Took(time.monotonic() - begin, _peak_mb() - before))
    assert took[0].megabytes < megabytes, f"{took[0].megabytes:.0f} MB"


def check_answer(code: int, printed: str, words: str, allowed: tuple[int, ...] = (0, 1, 2)) -> None:
    """Check for one error message and a documented exit code: no traceback, no bug, no terminal control sequences."""
    shown = f"exit code {code}\n{printed[-2000:]}\n{words[-3000:]}"
    assert code in allowed, shown
    assert "Traceback" not in words, shown
    assert code == 0 or "✗ " in words, shown
    assert len(words) < WORDS, len(words)
    for text in (printed, words):
        assert not any(mark in text for mark in ("\x1b", "\x07", "\r", "\u202e")), shown
        assert "\n✗ all is well" not in text, shown  # a line of ours that we did not write


Run = Callable[..., tuple[int, str, str]]


def run_bounded(halfbyte: Run, *argv: object, allowed: tuple[int, ...] = (0, 1, 2)) -> tuple[int, str, str]:
    """Run one command within the bounds; return its exit code, stdout, stderr."""
    with bounded():
        answer = halfbyte(*argv)
    check_answer(*answer, allowed=allowed)
    return answer
