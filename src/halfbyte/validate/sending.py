"""Many requests at once: bounded retries, errors that are counted and do not end the run, Ctrl-C at any time.

The threads are daemons: a request that hangs when the run ends is dropped with them.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from halfbyte.errors import MachineError
from halfbyte.interrupts import noted_ctrl_c
from halfbyte.validate.endpoint import Endpoint, EndpointError

ATTEMPTS = 3
WAIT_S = 1.0  # before the second attempt; twice that before the third
GIVE_UP_AFTER = 20  # failures in a row: then nobody is there to ask
_LOOK_S = 0.2  # how soon a Ctrl-C is seen
_REACHABLE_S = 10.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a request ended: with a body or with an error, after how many attempts and how long the last one took."""

    body: dict[str, Any] | None
    error: str | None
    attempts: int
    latency_s: float


@dataclass(frozen=True, slots=True)
class Sender:
    """Sends bodies to a path of an endpoint, several at a time."""

    endpoint: Endpoint
    concurrency: int
    attempts: int = ATTEMPTS
    wait_s: float = WAIT_S

    def send(self, path: str, bodies: Sequence[Any], finished: Callable[[int, Outcome], None]) -> None:
        """Send all of them; `finished` gets each with its number, in this thread, in the order in which they end."""
        todo: queue.SimpleQueue[int] = queue.SimpleQueue()
        done: queue.SimpleQueue[tuple[int, Outcome]] = queue.SimpleQueue()
        stop = threading.Event()
        for number in range(len(bodies)):
            todo.put(number)

        def work() -> None:
            while not stop.is_set():
                try:
                    number = todo.get_nowait()
                except queue.Empty:
                    return
                done.put((number, self._ask(path, bodies[number], stop)))

        for _ in range(min(self.concurrency, len(bodies))):
            threading.Thread(target=work, daemon=True).start()
        try:
            self._collect(len(bodies), done, finished)
        finally:
            stop.set()

    def _collect(
        self, count: int, done: queue.SimpleQueue[tuple[int, Outcome]], finished: Callable[[int, Outcome], None]
    ) -> None:
        ended = in_a_row = 0
        with noted_ctrl_c() as check:
            while ended < count:
                check()
                try:
                    number, outcome = done.get(timeout=_LOOK_S)
                except queue.Empty:
                    continue
                ended += 1
                finished(number, outcome)
                in_a_row = in_a_row + 1 if outcome.error else 0
                if in_a_row and (in_a_row >= GIVE_UP_AFTER or not self._reachable()):
                    what = f"the endpoint does not answer any more: {outcome.error}"
                    fix = "start it and run the same command again; what is finished is kept"
                    raise MachineError(what, where=self.endpoint.url, fix=fix)

    def _reachable(self) -> bool:
        try:
            self.endpoint.get("/v1/models", _REACHABLE_S)
        except EndpointError as error:
            return error.status is not None
        return True

    def _ask(self, path: str, body: Any, stop: threading.Event) -> Outcome:
        for attempt in range(1, self.attempts + 1):
            start = time.perf_counter()
            try:
                answer = self.endpoint.post(path, body)
            except EndpointError as error:
                seconds = time.perf_counter() - start
                if not error.again or attempt == self.attempts or stop.is_set():
                    return Outcome(None, str(error), attempt, seconds)
                stop.wait(self.wait_s * 2 ** (attempt - 1))
            except Exception as error:  # anything else must reach the thread that waits, or it waits for ever
                return Outcome(None, f"{type(error).__name__}: {error}", attempt, time.perf_counter() - start)
            else:
                return Outcome(answer, None, attempt, time.perf_counter() - start)
        raise AssertionError("unreachable: the last attempt returns")
