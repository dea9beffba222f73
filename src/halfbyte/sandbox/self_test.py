"""Self-test of a sandbox: attacks that it must withstand, tried once in every process that uses it.

An installed bwrap can still isolate nothing: user namespaces are disabled, a setuid helper has other rules, or a
container ignores limits. So the test tries attacks instead of reading settings.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from halfbyte.errors import MachineError
from halfbyte.sandbox.process import Limits, Ran

_LIMITS = Limits(seconds=20.0, memory_nbytes=400_000_000, processes=16, disk_nbytes=4_000_000, file_nbytes=2_000_000)
_VARIABLE = "HALFBYTE_SANDBOX_SENTINEL"

# Prints one JSON object: whether each forbidden action succeeded.
_ATTACKS = """
import json, os, socket, sys
FILE, FOLDER, PORT, PID, VARIABLE, LIMITS = json.loads({about!r})
def can(action):
    try:
        return bool(action())
    except (OSError, MemoryError, AttributeError, ImportError, NotImplementedError):
        return False
def write(path):
    with open(path, "wb") as file:
        file.write(b"x")
    return True
def connect():
    with socket.create_connection(("127.0.0.1", PORT), timeout=2):
        return True
def see():
    try:
        os.kill(PID, 0)
    except PermissionError:  # it is there
        pass
    return True
def fork_too_often():
    import signal, time
    children = []
    try:
        for _ in range(LIMITS["processes"] + 1):
            pid = os.fork()
            if not pid:
                time.sleep(30)
                os._exit(0)
            children.append(pid)
        return True
    finally:
        for pid in children:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
def fill():
    for number in range(1 + LIMITS["disk"] // 1_000_000):
        with open("/tmp/fill%d" % number, "wb") as file:
            file.write(bytes(1_000_000))
    return True
done = dict()
done["read a file on the host"] = can(lambda: open(FILE).read())
done["connect to a server on the host"] = can(connect)
done["see other processes"] = can(see)
done["read the environment"] = VARIABLE in os.environ
done["write outside its folder"] = any(can(lambda: write(os.path.join(place, "halfbyte-written"))) for place in
    (FOLDER, "/", "/dev", "/dev/shm", "/usr/lib", "/etc", os.path.dirname(os.__file__)))
done["allocate more memory than allowed"] = can(lambda: bytearray(LIMITS["memory"]))
done["start more processes than allowed"] = can(fork_too_often)
done["write more than allowed"] = can(fill)
print(json.dumps(done))
"""
_FORKED_MEMORY = """
import os, time
for _ in range(3):
    if not os.fork():
        held = bytearray(200_000_000)
        for place in range(0, len(held), 4096):
            held[place] = 1
        time.sleep(30)
time.sleep(30)
"""
_LIMIT_TESTS = {
    "while True: pass": ("time", replace(_LIMITS, seconds=0.5)),
    "while True: print('x' * 1000)": ("output", replace(_LIMITS, seconds=3.0, output_nbytes=10_000)),
}


class Engine(Protocol):
    """Runs programs."""

    @property
    def name(self) -> str:
        """Name for reports."""
        ...

    def run(self, source: str, limits: Limits, stdin: str = "") -> Ran:
        """Run one program."""
        ...


def run_self_test(engine: Engine, *, forks: bool = True) -> str | None:
    """Return the first forbidden action or missing limit of a sandbox, or None."""
    try:
        return _attacks(engine) or _limits(engine, forks=forks)
    except MachineError as error:
        return error.what


def _attacks(engine: Engine) -> str | None:
    with tempfile.TemporaryDirectory(prefix="halfbyte-self-test-") as folder, socket.socket() as server:
        Path(folder).chmod(0o777)  # readable by an unprivileged user, so that a leak shows
        secret = Path(folder, "secret")
        secret.write_text(secrets.token_hex())
        secret.chmod(0o644)
        server.bind(("127.0.0.1", 0))
        server.listen()
        limits = {"memory": _LIMITS.memory_nbytes, "processes": _LIMITS.processes, "disk": _LIMITS.disk_nbytes}
        about = json.dumps([str(secret), folder, server.getsockname()[1], os.getpid(), _VARIABLE, limits])
        os.environ[_VARIABLE] = secrets.token_hex()
        try:
            ran = engine.run(_ATTACKS.format(about=about), _LIMITS)
        finally:
            del os.environ[_VARIABLE]
    try:
        done: dict[str, bool] = json.loads(ran.stdout)
    except ValueError:
        lines = ran.stderr.strip().splitlines() or [f"ended by {ran.ended}, exit code {ran.code}"]
        return f"the self-test does not run: {lines[-1]}"
    possible = [name for name, yes in done.items() if yes]
    return f"a program can {', '.join(possible)}" if possible else None


def _limits(engine: Engine, *, forks: bool) -> str | None:
    tests = _LIMIT_TESTS | ({_FORKED_MEMORY: ("memory", _LIMITS)} if forks else {})
    for source, (expected, limits) in tests.items():
        ran = engine.run(source, limits)
        if ran.ended != expected:
            return f"the {expected} limit is not enforced (the program ended by {ran.ended})"
    return None
