"""Connect to a Ray cluster, and report why it cannot be reached."""

from __future__ import annotations

import importlib
import importlib.util
import logging
import os
import socket
import sys
from collections.abc import Generator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from typing import Any

from halfbyte.errors import MachineError, UsageError
from halfbyte.machine.extras import install_extra
from halfbyte.machine.resources import usable_cores

LOCAL, AUTO = "local", "auto"
_CLIENT = "ray://"
_ANSWER_SECONDS = 5.0
_USAGE = "RAY_USAGE_STATS_ENABLED"
_DOCS = "see docs/ray.md for how to start a cluster"


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
    resolved = os.environ.get("RAY_ADDRESS", "") if address == AUTO else address
    host, colon, port = resolved.rpartition(":")
    if colon and port.isdecimal():
        try:
            socket.create_connection((host.strip("[]"), int(port)), _ANSWER_SECONDS).close()
        except (OSError, OverflowError):
            raise _no_cluster(address, ConnectionError()) from None
    elif address not in (LOCAL, AUTO):
        fix = f"use HOST:PORT, {AUTO} or {LOCAL}"
        raise UsageError(f"'{address}' is not a valid cluster address", where="--ray", fix=fix)


@contextmanager
def connected(address: str) -> Generator[Any]:
    """Connect and yield the ray module; reuse an existing connection of this process."""
    ray = _ray()
    if ray.is_initialized():
        yield ray
        return
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if address == LOCAL:
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
    if address == LOCAL:
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
