"""Run `halfbyte serve OUT --run --json` as a child process while the stages that use it run."""

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
from halfbyte.serve.engine_log import is_written
from halfbyte.serve.engine_process import EngineProcess

POLL_S = 0.2
EARLIER_S = 120.0  # longer than a supervisor needs to kill its processes
PATIENCE = 3.0  # `serve` stops its own engine; the supervisor must not kill it earlier
_JSON_OBJECT = re.compile(rb"^\{\n.*?^\}", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class Ready:
    """The URL of a server that answers, and its startup time."""

    url: str
    boot: str | None

    @property
    def environment(self) -> dict[str, str]:
        """Return the environment variables for its clients, as `serve --run --then` sets them."""
        return {VARIABLE: self.boot} if self.boot else {}


def wait_for_earlier(log: Path, meanwhile: Callable[[], None]) -> None:
    """Wait until the supervisor of a killed run has stopped its engine and freed its memory."""
    until = time.monotonic() + EARLIER_S
    while log.is_file() and is_written(log) and time.monotonic() < until:
        meanwhile()
        time.sleep(POLL_S)


class Server:
    """A server under a supervisor, which stops it when this process exits for any reason."""

    def __init__(self, command: Sequence[str], log: Path) -> None:
        self.log = StageLog(log, 0)  # each start writes a new file and keeps the earlier one
        self._process = EngineProcess(command, child_environment(), log, patience=PATIENCE)

    def ready(self, meanwhile: Callable[[], None]) -> Ready | None:
        """Wait until the server answers; None if it exits first."""
        while True:
            ready = self._printed()
            if ready is not None:
                return ready
            if self._process.exit_code() is not None:
                return None
            meanwhile()
            time.sleep(POLL_S)

    def exit_code(self) -> int | None:
        """Return the exit code as a shell reports it; None while the server runs."""
        code = self._process.exit_code()
        return code if code is None or code >= 0 else 128 - code

    def stop(self) -> None:
        """Stop the server gracefully, then by force."""
        self._process.stop()

    def kill(self) -> None:
        """Kill the server; safe in a signal handler."""
        self._process.kill()

    def _printed(self) -> Ready | None:
        """Return the URL and startup time that the server printed, if it has."""
        match = _JSON_OBJECT.search(self.log.path.read_bytes()) if self.log.path.exists() else None
        try:
            value: Any = json.loads(match[0]) if match else None
        except ValueError:
            return None
        if not isinstance(value, dict):
            return None
        launch = cast("dict[str, Any]", value)
        return Ready(str(launch["url"]), launch.get("boot")) if "url" in launch else None
