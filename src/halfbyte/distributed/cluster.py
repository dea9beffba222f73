"""Ray itself: how a run finds a cluster, and what is said where there is none."""

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
from halfbyte.numerics.chunks import usable_cores

LOCAL, AUTO = "local", "auto"
_CLIENT = "ray://"
_ANSWER_SECONDS = 5.0
_USAGE = "RAY_USAGE_STATS_ENABLED"
_DOCS = "docs/ray.md shows how a cluster is started"


@dataclass(frozen=True, slots=True)
class Node:
    """A machine of the cluster."""

    number: str
    address: str
    cpus: int
    memory_nbytes: int


def check_address(address: str) -> None:
    """Refuse a machine without Ray and an address where nobody answers: Ray itself would wait there for minutes."""
    if importlib.util.find_spec("ray") is None:
        raise _no_ray()
    _refuse_client(address)
    found = os.environ.get("RAY_ADDRESS", "") if address == AUTO else address
    host, colon, port = found.rpartition(":")
    if colon and port.isdecimal():
        try:
            socket.create_connection((host.strip("[]"), int(port)), _ANSWER_SECONDS).close()
        except (OSError, OverflowError):
            raise _no_cluster(address, ConnectionError()) from None
    elif address not in (LOCAL, AUTO):
        fix = f"write HOST:PORT, {AUTO} or {LOCAL}"
        raise UsageError(f"'{address}' is no address of a cluster", where="--ray", fix=fix)


@contextmanager
def connected(address: str) -> Generator[Any]:
    """Yield Ray, connected; a program that has connected before keeps its cluster."""
    ray = _ray()
    if ray.is_initialized():
        yield ray
        return
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if address == LOCAL:
        options |= {"num_cpus": usable_cores(), "include_dashboard": False}
    with redirect_stdout(sys.stderr):  # Ray tells of dead workers there, and ours is for answers
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
    """Return the machines that can work now."""
    found = [node for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU", 0) >= 1]
    return [
        Node(node["NodeID"], node["NodeManagerAddress"], int(node["Resources"]["CPU"]), _memory(node)) for node in found
    ]


def _memory(node: Any) -> int:
    return int(node["Resources"].get("memory", 0))


def _ray() -> Any:
    try:
        return importlib.import_module("ray")
    except ImportError:
        raise _no_ray() from None


def _no_ray() -> MachineError:
    what = "--ray needs Ray, which is not installed"
    return MachineError(what, where="--ray", fix=f"{install_extra('ray')}, on every machine")


def _refuse_client(address: str) -> None:
    if address.startswith(_CLIENT):
        what = "the driver writes the journal on the cluster's shared storage, which a Ray client may not see"
        fix = "run the command on a machine of the cluster, with --ray auto (ray job submit does that)"
        raise UsageError(what, where=f"--ray {address}", fix=fix)


def _no_cluster(address: str, error: Exception) -> MachineError:
    said = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
    if address == LOCAL:
        return MachineError(f"Ray does not start here: {said}", where="--ray local", fix="leave --ray out")
    if isinstance(error, ConnectionError):
        said = "no cluster answers"
    return MachineError(f"Ray cannot be reached: {said}", where=f"--ray {address}", fix=_DOCS)


@contextmanager
def _without_usage_report() -> Generator[None]:
    """A cluster that is started here tells nobody about it, unless its owner wants that."""
    if _USAGE in os.environ:
        yield
        return
    os.environ[_USAGE] = "0"
    try:
        yield
    finally:
        del os.environ[_USAGE]
