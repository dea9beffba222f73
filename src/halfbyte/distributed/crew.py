"""Tasks on a cluster, each done once: what dies is done again elsewhere, what is wrong is said, what ends is ended.

Ray could try again by itself. The driver does it, because it knows which failures are worth it, must not count a lost
machine as the input's fault, and removes what a lost task has left half-written.
"""

from __future__ import annotations

import contextlib
import errno
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from halfbyte.distributed.cluster import nodes
from halfbyte.distributed.worker import Answer
from halfbyte.errors import MachineError

ATTEMPTS = 4
_WAIT_SECONDS = 0.5  # after which Ctrl-C is looked at
_STUCK_SECONDS = 30.0
_END_SECONDS = 20.0  # for tasks that were ended to be gone
_FULL = (errno.ENOSPC, errno.EDQUOT)

Arguments = Callable[[str, int, int], tuple[Any, ...]]  # of the task of this name, at this attempt, with so many cores


@dataclass(frozen=True, slots=True)
class Share:
    """What a task takes of a machine."""

    cpus: int
    memory_nbytes: int


@dataclass(frozen=True, slots=True)
class _Try:
    name: str
    number: int
    share: Share


class Crew:
    """The workers of a cluster."""

    def __init__(self, ray: Any, share: Share, say: Callable[[str], None], tidy: Callable[[str], None]) -> None:
        self._ray, self._share, self._say, self._tidy = ray, share, say, tidy

    def each(self, work: Callable[..., Answer], names: Sequence[str], of: Arguments) -> Generator[tuple[str, Answer]]:
        """Do a task for every name, as many at a time as the cluster can; yield the answers as they come."""
        task = self._ray.remote(work)
        running: dict[Any, _Try] = {}

        def start(attempt: _Try) -> None:
            options = task.options(
                num_cpus=attempt.share.cpus,
                memory=attempt.share.memory_nbytes,
                max_retries=0,
                scheduling_strategy="SPREAD",
                name=f"halfbyte {attempt.name}",
            )
            running[options.remote(*of(attempt.name, attempt.number, attempt.share.cpus))] = attempt

        try:
            for name in names:
                start(_Try(name, 1, self._share))
            quiet = time.monotonic()
            while running:
                done, _ = self._ray.wait(list(running), timeout=_WAIT_SECONDS)
                quiet = self._say_if_stuck(running, quiet) if not done else time.monotonic()
                for ref in done:
                    attempt = running.pop(ref)
                    answer = self._answer(ref, attempt)
                    if isinstance(answer, _Try):
                        start(answer)
                    else:
                        yield attempt.name, answer
        finally:
            self._end(list(running))

    def _answer(self, ref: Any, attempt: _Try) -> Answer | _Try:
        """Return the answer of a task, or how it is tried again."""
        errors = self._ray.exceptions
        try:
            answer: Answer = self._ray.get(ref)
        except errors.RayTaskError as error:
            raise _not_ours(error) or error from None
        except errors.LocalRayletDiedError as error:
            raise _lost_cluster(error) from None
        except errors.RayError as error:
            why = _first_line(error)
            return self._again(attempt, why, MachineError(why), larger=isinstance(error, errors.OutOfMemoryError))
        if answer.error is None:
            return answer
        if isinstance(answer.error, MemoryError) or _is_passing(answer.error):
            why = f"node {answer.node}: {_first_line(answer.error)}"
            return self._again(attempt, why, answer.error, larger=isinstance(answer.error, MemoryError))
        raise answer.error

    def _again(self, attempt: _Try, why: str, error: Exception, *, larger: bool) -> _Try:
        """Return the next attempt; one that ran out of memory asks for more of a machine, with fewer beside it."""
        self._tidy(attempt.name)
        if attempt.number == ATTEMPTS:
            if isinstance(error, OSError):
                raise error
            what = f"{attempt.name} failed {ATTEMPTS} times, the last time so: {why}"
            fix = "look at the nodes, then run the same command again: what is finished is kept"
            raise MachineError(what, where="--ray", fix=fix)
        share = attempt.share
        if larger:
            there = nodes(self._ray)
            most = max([node.cpus for node in there], default=share.cpus)
            memory = max([node.memory_nbytes for node in there], default=share.memory_nbytes)
            share = Share(min(2 * share.cpus, most), min(2 * share.memory_nbytes, memory))
        self._say(f"{attempt.name}: {why}; trying again, {attempt.number + 1} of {ATTEMPTS}")
        return replace(attempt, number=attempt.number + 1, share=share)

    def _say_if_stuck(self, running: dict[Any, _Try], quiet: float) -> float:
        """Say what is waited for where no machine can do what is left; one may join later."""
        if time.monotonic() - quiet < _STUCK_SECONDS:
            return quiet
        wanted = min(attempt.share.cpus for attempt in running.values())
        if all(node.cpus < wanted for node in nodes(self._ray)):
            self._say(f"waiting for a node with {wanted} cores or more")
        return time.monotonic()

    def _end(self, refs: list[Any]) -> None:
        """End tasks and wait until they are gone; a worker that is killed has lost nothing that is finished."""
        if not refs:
            return
        with contextlib.suppress(self._ray.exceptions.RayError):
            for ref in refs:
                self._ray.cancel(ref, force=True)
            self._ray.wait(refs, num_returns=len(refs), timeout=_END_SECONDS)


def _is_passing(error: Exception) -> bool:
    """Whether another machine may not have the same trouble: a stale mount, a bad cable, but no full disk."""
    return isinstance(error, OSError) and error.errno not in _FULL


def _not_ours(error: Exception) -> MachineError | None:
    """Return what is said of a worker without halfbyte; None for what is a bug."""
    cause = getattr(error, "cause", None)
    said = str(cause or error)
    if isinstance(cause, ModuleNotFoundError) or "failed to import" in said or "No module named 'halfbyte" in said:
        what = "a node of the cluster cannot import halfbyte"
        return MachineError(what, where="--ray", fix="install the same version of halfbyte on all nodes")
    return None


def _lost_cluster(error: Exception) -> MachineError:
    fix = "start it again, then run the same command: finished shards are kept"
    return MachineError(f"this machine left the cluster: {_first_line(error)}", where="--ray", fix=fix)


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
