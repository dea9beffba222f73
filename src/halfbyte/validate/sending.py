"""Many requests at once: bounded retries, errors that are counted and do not end the run, Ctrl-C at any time.

The threads are daemons: a request that hangs when the run ends is dropped with them.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from halfbyte.errors import MachineError
from halfbyte.machine.interrupts import noted_ctrl_c
from halfbyte.validate.endpoint import Endpoint, EndpointError

ATTEMPTS = 3
WAIT_S = 1.0  # before the second attempt; twice that before the third
GIVE_UP_AFTER = 20  # failures in a row: then nobody is there to ask
_LOOK_S = 0.2  # how soon a Ctrl-C is seen
_REACHABLE_S = 10.0
Result = TypeVar("Result")


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
        in_a_row = 0
        for number, outcome in fan_out(
            len(bodies), self.concurrency, lambda number, stop: self._ask(path, bodies[number], stop)
        ):
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
            except Exception as error:  # counted as any other
                return Outcome(None, f"{type(error).__name__}: {error}", attempt, time.perf_counter() - start)
            else:
                return Outcome(answer, None, attempt, time.perf_counter() - start)
        raise AssertionError("unreachable: the last attempt returns")


def fan_out(
    count: int, concurrency: int, work: Callable[[int, threading.Event], Result]
) -> Iterator[tuple[int, Result]]:
    """Do a numbered work in daemon threads; yield number and result in the order in which they end.

    An error of `work` is raised here, a Ctrl-C too. `work` gets an event that tells it that nobody waits any more.
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
            except BaseException as error:  # it must reach the thread that waits, or that waits for ever
                done.put((number, None, error))

    for _ in range(min(concurrency, count)):
        threading.Thread(target=run, daemon=True).start()
    try:
        with noted_ctrl_c() as check:
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
            number, result, error = done.get(timeout=_LOOK_S)
        except queue.Empty:
            continue
        if error is not None:
            raise error
        return number, cast("Result", result)
