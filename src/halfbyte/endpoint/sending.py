"""Send requests concurrently with bounded retries. A failed request does not stop the run, Ctrl-C does at any time.

Daemon threads send the requests, so a hanging request does not delay the exit.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from halfbyte.endpoint.client import Endpoint, EndpointError
from halfbyte.errors import MachineError
from halfbyte.machine.interrupts import deferred_ctrl_c
from halfbyte.machine.retry import Backoff

BACKOFF = Backoff(attempts=3, first_wait_s=1.0)
GIVE_UP_AFTER = 20  # consecutive failures
_POLL_S = 0.2  # interval of the check for Ctrl-C
_REACHABLE_S = 10.0
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of a request: a body or an error, the number of attempts, and the latency of the last one."""

    body: dict[str, Any] | None
    error: str | None
    attempts: int
    latency_s: float


@dataclass(frozen=True, slots=True)
class Sender:
    """Sends request bodies to an endpoint, several at a time."""

    endpoint: Endpoint
    concurrency: int
    backoff: Backoff = BACKOFF

    def send(self, path: str, bodies: Sequence[Any], finished: Callable[[int, Outcome], None]) -> None:
        """Send all bodies; call `finished` in this thread with each index and outcome, in order of completion."""
        in_a_row = 0
        for number, outcome in fan_out(
            len(bodies), self.concurrency, lambda number, stop: self._ask(path, bodies[number], stop)
        ):
            finished(number, outcome)
            in_a_row = in_a_row + 1 if outcome.error else 0
            if in_a_row and (in_a_row >= GIVE_UP_AFTER or not self._reachable()):
                what = f"the endpoint no longer responds: {outcome.error}"
                fix = "start it and run the same command again; finished requests are kept"
                raise MachineError(what, where=self.endpoint.url, fix=fix)

    def _reachable(self) -> bool:
        try:
            self.endpoint.get("/v1/models", _REACHABLE_S)
        except EndpointError as error:
            return error.status is not None
        return True

    def _ask(self, path: str, body: Any, stop: threading.Event) -> Outcome:
        for attempt in range(1, self.backoff.attempts + 1):
            start = time.perf_counter()
            try:
                answer = self.endpoint.post(path, body)
            except EndpointError as error:
                seconds = time.perf_counter() - start
                if not error.again or attempt == self.backoff.attempts or stop.is_set():
                    return Outcome(None, str(error), attempt, seconds)
                stop.wait(self.backoff.wait_s(attempt))
            except Exception as error:
                return Outcome(None, f"{type(error).__name__}: {error}", attempt, time.perf_counter() - start)
            else:
                return Outcome(answer, None, attempt, time.perf_counter() - start)
        raise AssertionError("unreachable: the last attempt returns")


def fan_out(
    count: int, concurrency: int, work: Callable[[int, threading.Event], Result]
) -> Iterator[tuple[int, Result]]:
    """Call `work` for each index in daemon threads; yield index and result in order of completion.

    Errors of `work` and Ctrl-C are raised here. `work` also gets an event that is set when the caller stops waiting.
    """
    todo: queue.SimpleQueue[int] = queue.SimpleQueue()
    done: queue.SimpleQueue[tuple[int, Result | None, BaseException | None]] = queue.SimpleQueue()
    stop = threading.Event()
    for number in range(count):
        todo.put(number)

    def run() -> None:
        while not stop.is_set():
            try:
                number = todo.get_nowait()
            except queue.Empty:
                return
            try:
                done.put((number, work(number, stop), None))
            except BaseException as error:  # the waiting thread would otherwise block forever
                done.put((number, None, error))

    for _ in range(min(concurrency, count)):
        threading.Thread(target=run, daemon=True).start()
    try:
        with deferred_ctrl_c() as check:
            for _ in range(count):
                yield _next(done, check)
    finally:
        stop.set()


def _next(
    done: queue.SimpleQueue[tuple[int, Result | None, BaseException | None]], check: Callable[[], None]
) -> tuple[int, Result]:
    while True:
        check()
        try:
            number, result, error = done.get(timeout=_POLL_S)
        except queue.Empty:
            continue
        if error is not None:
            raise error
        return number, cast("Result", result)
