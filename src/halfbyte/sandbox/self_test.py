"""The attacks that a sandbox must withstand before it is believed: tried inside it, at the start of every process.

A bwrap that is installed can still isolate nothing: user namespaces switched off, a setuid helper with other rules, a
container that ignores limits. So we do not read settings, we try.
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
from halfbyte.sandbox.limits import Limits
from halfbyte.sandbox.ran import Ran

_LIMITS = Limits(seconds=20.0, memory_nbytes=400_000_000, processes=16, disk_nbytes=4_000_000, file_nbytes=2_000_000)
_VARIABLE = "HALFBYTE_SANDBOX_SENTINEL"

# Prints one JSON object: what could be done that must not be possible, and that ordinary things work.
_ATTACKS = """
import json, os, socket, sys
FILE, FOLDER, PORT, VARIABLE, LIMITS = json.loads({about!r})
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
done["read a file of the host"] = can(lambda: open(FILE).read())
done["reach a server of the host"] = can(connect)
done["read the environment"] = VARIABLE in os.environ
done["write outside its folder"] = any(can(lambda: write(os.path.join(place, "halfbyte-written"))) for place in
    (FOLDER, "/", "/dev", "/dev/shm", "/usr/lib", "/etc", os.path.dirname(os.__file__)))
done["take more memory than allowed"] = can(lambda: bytearray(LIMITS["memory"]))
done["start more processes than allowed"] = can(fork_too_often)
done["write more than allowed"] = can(fill)
print(json.dumps(done))
"""
_TOGETHER = """
import os, time
for _ in range(3):
    if not os.fork():
        held = bytearray(200_000_000)
        for place in range(0, len(held), 4096):
            held[place] = 1
        time.sleep(30)
time.sleep(30)
"""
_ENDS = {
    "while True: pass": ("time", replace(_LIMITS, seconds=0.5)),
    "while True: print('x' * 1000)": ("output", replace(_LIMITS, output_nbytes=10_000)),
}


class Engine(Protocol):
    """What runs programs."""

    @property
    def name(self) -> str:
        """What it is, for a report."""
        ...

    def run(self, source: str, limits: Limits, stdin: str = "") -> Ran:
        """Run one program."""
        ...


def what_gets_out(engine: Engine, *, forks: bool = True) -> str | None:
    """Return in words what a program could do in this sandbox that it must not, or None."""
    try:
        return _attacks(engine) or _limits(engine, forks=forks)
    except MachineError as error:
        return error.what


def _attacks(engine: Engine) -> str | None:
    with tempfile.TemporaryDirectory(prefix="halfbyte-self-test-") as folder, socket.socket() as server:
        Path(folder).chmod(0o777)  # a sandbox that shows it must be found out also by an unprivileged user
        secret = Path(folder, "secret")
        secret.write_text(secrets.token_hex())
        secret.chmod(0o644)
        server.bind(("127.0.0.1", 0))
        server.listen()
        limits = {"memory": _LIMITS.memory_nbytes, "processes": _LIMITS.processes, "disk": _LIMITS.disk_nbytes}
        about = json.dumps([str(secret), folder, server.getsockname()[1], _VARIABLE, limits])
        os.environ[_VARIABLE] = secrets.token_hex()
        try:
            ran = engine.run(_ATTACKS.format(about=about), _LIMITS)
        finally:
            del os.environ[_VARIABLE]
    try:
        done: dict[str, bool] = json.loads(ran.stdout)
    except ValueError:
        lines = ran.stderr.strip().splitlines() or [f"ended by {ran.ended}, exit code {ran.code}"]
        return f"the self-test does not run in it: {lines[-1]}"
    possible = [name for name, yes in done.items() if yes]
    return f"a program in it can {', '.join(possible)}" if possible else None


def _limits(engine: Engine, *, forks: bool) -> str | None:
    ends = _ENDS | ({_TOGETHER: ("memory", _LIMITS)} if forks else {})
    for source, (expected, limits) in ends.items():
        ran = engine.run(source, limits)
        if ran.ended != expected:
            return f"its limit of {expected} does not hold (the program ended by {ran.ended})"
    return None
