"""Connect to a Ray cluster, report why it cannot be reached, and run tasks on it with retries.

The driver retries instead of Ray, because it knows which failures are worth a retry and removes the partial files of
lost tasks.
"""

from __future__ import annotations

import contextlib
import errno
import importlib
import importlib.util
import logging
import os
import socket
import sys
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, replace
from typing import Any

from halfbyte.engine.backends.ray.worker import TaskResult
from halfbyte.errors import MachineError, UsageError
from halfbyte.machine.extras import install_extra
from halfbyte.machine.resources import usable_cores

_LOCAL, _AUTO = "local", "auto"
_CLIENT = "ray://"
_ANSWER_SECONDS = 5.0
_USAGE = "RAY_USAGE_STATS_ENABLED"
_DOCS = "see docs/ray.md for how to start a cluster"

ATTEMPTS = 4
_WAIT_SECONDS = 0.5  # interval for checking Ctrl-C
_STUCK_SECONDS = 30.0
_END_SECONDS = 20.0  # for cancelled tasks to stop
_FULL = (errno.ENOSPC, errno.EDQUOT)

Arguments = Callable[[str, int, int], tuple[Any, ...]]  # of a task, by its name, attempt and cores


@dataclass(frozen=True, slots=True)
class Node:
    """A node of the cluster."""

    number: str
    address: str
    cpus: int
    memory_nbytes: int


def check_address(address: str) -> None:
    """Raise if Ray is not installed or the address does not respond; Ray itself would wait for minutes."""
    if importlib.util.find_spec("ray") is None:
        raise _no_ray()
    _refuse_client(address)
    resolved = os.environ.get("RAY_ADDRESS", "") if address == _AUTO else address
    host, colon, port = resolved.rpartition(":")
    if colon and port.isdecimal():
        try:
            socket.create_connection((host.strip("[]"), int(port)), _ANSWER_SECONDS).close()
        except (OSError, OverflowError):
            raise _no_cluster(address, ConnectionError()) from None
    elif address not in (_LOCAL, _AUTO):
        fix = f"use HOST:PORT, {_AUTO} or {_LOCAL}"
        raise UsageError(f"'{address}' is not a valid cluster address", where="--ray", fix=fix)


@contextmanager
def connected(address: str) -> Generator[Any]:
    """Connect and yield the ray module; reuse an existing connection of this process."""
    ray = _ray()
    if ray.is_initialized():
        yield ray
        return
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if address == _LOCAL:
        options |= {"num_cpus": usable_cores(), "include_dashboard": False}
    with redirect_stdout(sys.stderr):  # Ray logs dead workers to stdout, which is for command output
        with _without_usage_report():
            try:
                ray.init(address=address, **options)
            except Exception as error:
                raise _no_cluster(address, error) from None
        try:
            yield ray
        finally:
            ray.shutdown()


def nodes(ray: Any) -> list[Node]:
    """Return the live nodes that have CPUs."""
    alive = [node for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU", 0) >= 1]
    return [
        Node(node["NodeID"], node["NodeManagerAddress"], int(node["Resources"]["CPU"]), _memory(node)) for node in alive
    ]


def _memory(node: Any) -> int:
    return int(node["Resources"].get("memory", 0))


def _ray() -> Any:
    try:
        return importlib.import_module("ray")
    except ImportError:
        raise _no_ray() from None


def _no_ray() -> MachineError:
    what = "--ray requires Ray, which is not installed"
    return MachineError(what, where="--ray", fix=f"{install_extra('ray')}, on every node")


def _refuse_client(address: str) -> None:
    if address.startswith(_CLIENT):
        what = "Ray Client is not supported: the driver must access the cluster's shared storage"
        fix = "run the command on a node of the cluster with --ray auto, e.g. with `ray job submit`"
        raise UsageError(what, where=f"--ray {address}", fix=fix)


def _no_cluster(address: str, error: Exception) -> MachineError:
    reason = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
    if address == _LOCAL:
        return MachineError(f"cannot start Ray: {reason}", where="--ray local", fix="omit --ray")
    if isinstance(error, ConnectionError):
        reason = "no response"
    return MachineError(f"cannot connect to Ray: {reason}", where=f"--ray {address}", fix=_DOCS)


@contextmanager
def _without_usage_report() -> Generator[None]:
    """Disable Ray's usage statistics for a local cluster, unless the environment enables them."""
    if _USAGE in os.environ:
        yield
        return
    os.environ[_USAGE] = "0"
    try:
        yield
    finally:
        del os.environ[_USAGE]


@dataclass(frozen=True, slots=True)
class TaskResources:
    """The CPUs and memory that a task reserves."""

    cpus: int
    memory_nbytes: int


@dataclass(frozen=True, slots=True)
class _Try:
    name: str
    number: int
    resources: TaskResources


class TaskPool:
    """Runs tasks on a cluster; `clean_up` removes the partial files of a task."""

    def __init__(
        self, ray: Any, resources: TaskResources, say: Callable[[str], None], clean_up: Callable[[str], None]
    ) -> None:
        self._ray, self._resources, self._say, self._clean_up = ray, resources, say, clean_up

    def each(
        self, work: Callable[..., TaskResult], names: Sequence[str], arguments: Arguments
    ) -> Generator[tuple[str, TaskResult]]:
        """Run a task for every name, as many in parallel as the cluster allows; yield results as they arrive."""
        task = self._ray.remote(work)
        running: dict[Any, _Try] = {}

        def start(attempt: _Try) -> None:
            options = task.options(
                num_cpus=attempt.resources.cpus,
                memory=attempt.resources.memory_nbytes,
                max_retries=0,
                scheduling_strategy="SPREAD",
                name=f"halfbyte {attempt.name}",
            )
            running[options.remote(*arguments(attempt.name, attempt.number, attempt.resources.cpus))] = attempt

        try:
            for name in names:
                start(_Try(name, 1, self._resources))
            last_result = time.monotonic()
            while running:
                done, _ = self._ray.wait(list(running), timeout=_WAIT_SECONDS)
                last_result = self._warn_if_stuck(running, last_result) if not done else time.monotonic()
                for ref in done:
                    attempt = running.pop(ref)
                    outcome = self._outcome(ref, attempt)
                    if isinstance(outcome, _Try):
                        start(outcome)
                    else:
                        yield attempt.name, outcome
        finally:
            self._cancel(list(running))

    def _outcome(self, ref: Any, attempt: _Try) -> TaskResult | _Try:
        """Return the result of a task, or the next attempt."""
        errors = self._ray.exceptions
        try:
            result: TaskResult = self._ray.get(ref)
        except errors.RayTaskError as error:
            raise _missing_package(error) or error from None
        except errors.LocalRayletDiedError as error:
            raise _lost_cluster(error) from None
        except errors.RayError as error:
            why = _first_line(error)
            return self._retry(attempt, why, MachineError(why), larger=isinstance(error, errors.OutOfMemoryError))
        if result.error is None:
            return result
        if isinstance(result.error, MemoryError) or _is_transient(result.error):
            why = f"node {result.node}: {_first_line(result.error)}"
            return self._retry(attempt, why, result.error, larger=isinstance(result.error, MemoryError))
        raise result.error

    def _retry(self, attempt: _Try, why: str, error: Exception, *, larger: bool) -> _Try:
        """Return the next attempt; after running out of memory it reserves twice the CPUs and memory."""
        self._clean_up(attempt.name)
        if attempt.number == ATTEMPTS:
            if isinstance(error, OSError):
                raise error
            what = f"{attempt.name} failed {ATTEMPTS} times; last error: {why}"
            fix = "check the nodes, then run the same command again: finished work is kept"
            raise MachineError(what, where="--ray", fix=fix)
        resources = attempt.resources
        if larger:
            alive = nodes(self._ray)
            most = max([node.cpus for node in alive], default=resources.cpus)
            memory = max([node.memory_nbytes for node in alive], default=resources.memory_nbytes)
            resources = TaskResources(min(2 * resources.cpus, most), min(2 * resources.memory_nbytes, memory))
        self._say(f"{attempt.name}: {why}; retrying, attempt {attempt.number + 1} of {ATTEMPTS}")
        return replace(attempt, number=attempt.number + 1, resources=resources)

    def _warn_if_stuck(self, running: dict[Any, _Try], last_result: float) -> float:
        """Report if no node has enough cores for the remaining tasks; one may join later."""
        if time.monotonic() - last_result < _STUCK_SECONDS:
            return last_result
        needed = min(attempt.resources.cpus for attempt in running.values())
        if all(node.cpus < needed for node in nodes(self._ray)):
            self._say(f"waiting for a node with {needed} cores or more")
        return time.monotonic()

    def _cancel(self, refs: list[Any]) -> None:
        """Cancel tasks and wait until they stop. Finished shards are not affected."""
        if not refs:
            return
        with contextlib.suppress(self._ray.exceptions.RayError):
            for ref in refs:
                self._ray.cancel(ref, force=True)
            self._ray.wait(refs, num_returns=len(refs), timeout=_END_SECONDS)


def _is_transient(error: Exception) -> bool:
    """Return whether a retry on another node may succeed: any OSError (stale mount, bad cable) except a full disk."""
    return isinstance(error, OSError) and error.errno not in _FULL


def _missing_package(error: Exception) -> MachineError | None:
    """Return the error to report for a node without halfbyte; None for other errors, which are bugs."""
    cause = getattr(error, "cause", None)
    text = str(cause or error)
    if isinstance(cause, ModuleNotFoundError) or "failed to import" in text or "No module named 'halfbyte" in text:
        what = "a node of the cluster cannot import halfbyte"
        return MachineError(what, where="--ray", fix="install the same version of halfbyte on all nodes")
    return None


def _lost_cluster(error: Exception) -> MachineError:
    fix = "restart Ray here, then run the same command again: finished shards are kept"
    return MachineError(f"this machine left the cluster: {_first_line(error)}", where="--ray", fix=fix)


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
