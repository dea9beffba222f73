"""The result's server: `halfbyte serve OUT --run --json` as a process of its own, for as long as stages ask it."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from halfbyte.release.child import StageLog, child_environment
from halfbyte.serve.boot_time import VARIABLE
from halfbyte.serve.engine_process import EngineProcess
from halfbyte.serve.log_file import is_written

POLL_S = 0.2
EARLIER_S = 120.0  # more than a keeper takes to end everything by force
PATIENCE = 3.0  # `serve` ends its engine in its own time, which the keeper above it must not cut
_TOLD = re.compile(rb"^\{\n.*?^\}", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class Ready:
    """Where a server answers, and how long it took to start."""

    url: str
    boot: str | None

    @property
    def environment(self) -> dict[str, str]:
        """Return what commands that ask it find in their environment, as after `serve --run --then`."""
        return {VARIABLE: self.boot} if self.boot else {}


def wait_for_earlier(log: Path, meanwhile: Callable[[], None]) -> None:
    """Wait until whatever a killed run left has been ended: its keeper sees to that, and its memory is needed."""
    until = time.monotonic() + EARLIER_S
    while log.is_file() and is_written(log) and time.monotonic() < until:
        meanwhile()
        time.sleep(POLL_S)


class Server:
    """A server under its keeper: whatever happens to us, it ends."""

    def __init__(self, command: Sequence[str], log: Path) -> None:
        self.log = StageLog(log, 0)  # a new file for each start; the earlier one is kept beside it
        self._process = EngineProcess(command, child_environment(), log, patience=PATIENCE)

    def ready(self, meanwhile: Callable[[], None]) -> Ready | None:
        """Wait until it answers; None where it ends before."""
        while True:
            told = self._told()
            if told is not None:
                return told
            if self._process.exit_code() is not None:
                return None
            meanwhile()
            time.sleep(POLL_S)

    def exit_code(self) -> int | None:
        """Return how it ended, as a shell says it; None while it runs."""
        code = self._process.exit_code()
        return code if code is None or code >= 0 else 128 - code

    def stop(self) -> None:
        """End it politely, then by force."""
        self._process.stop()

    def kill(self) -> None:
        """End it at once; safe in a signal handler."""
        self._process.kill()

    def _told(self) -> Ready | None:
        """Return what it printed once it answered."""
        found = _TOLD.search(self.log.path.read_bytes()) if self.log.path.exists() else None
        try:
            value: Any = json.loads(found[0]) if found else None
        except ValueError:
            return None
        if not isinstance(value, dict):
            return None
        told = cast("dict[str, Any]", value)
        return Ready(str(told["url"]), told.get("boot")) if "url" in told else None
