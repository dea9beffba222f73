"""A `vllm serve` with the halfbyte under test as its plugin, in its own session, so that its processes can be counted.

It uses nothing of the folder's conftest but the command, to test the plugin in isolation.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path

import quick_start

import halfbyte
from halfbyte.serve.installed import Installed

STARTS_IN_S = 600
# As serve/data/settings.yaml has them: in BF16 vLLM uses AMX if the CPU reports it, and dies of SIGILL in virtual
# machines that do not allow it. CPU_MLA is the only MLA kernel for CPUs.
_CPU_OPTIONS = ("--dtype", "float32", "--attention-backend", "CPU_MLA")


def cpu_options(vllm: Installed) -> list[str]:
    """Return the options of `vllm serve` for Kimi on a machine without a GPU; none with one."""
    return [*_CPU_OPTIONS] if vllm.device == "cpu" else []


class EmulatedServer:
    """A server that is healthy after construction; call `stop` to stop it."""

    def __init__(
        self, vllm: Path, folder: Path, log: Path, options: list[str], extra: Mapping[str, str] | None = None
    ) -> None:
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            port = listener.getsockname()[1]
        self.url, self.log = f"http://127.0.0.1:{port}", log
        extra = dict(extra or {})
        modules = [str(Path(halfbyte.__file__).parents[1]), extra.pop("PYTHONPATH", "")]
        environment = {**quick_start.ENVIRONMENT, **os.environ, **extra, "PYTHONPATH": ":".join(filter(None, modules))}
        environment["PATH"] = f"{vllm.parent}:{os.environ.get('PATH', '')}"
        listen = ["--host", "127.0.0.1", "--port", str(port)]
        command = [str(vllm), "serve", str(folder), *listen, *quick_start.OPTIONS, *options]
        begin = time.monotonic()
        with log.open("wb") as out:
            self.process = subprocess.Popen(
                command, stdout=out, stderr=subprocess.STDOUT, env=environment, cwd=log.parent, start_new_session=True
            )
        try:
            self._wait(begin + STARTS_IN_S)
        except BaseException:
            self._kill()
            raise
        self.seconds = time.monotonic() - begin

    def _wait(self, end: float) -> None:
        while not self._healthy():
            lines = self.log.read_text(errors="replace").strip()
            assert self.process.poll() is None, f"vLLM ended with {self.process.returncode}:\n{lines[-6000:]}"
            assert time.monotonic() < end, f"vLLM does not answer after {STARTS_IN_S} s:\n{lines[-6000:]}"
            time.sleep(0.5)

    def _healthy(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=2) as answer:
                return answer.status == 200
        except (urllib.error.URLError, OSError):
            return False

    def stop(self) -> list[str]:
        """Stop it with Ctrl-C; return the processes of its session that are still running a while later."""
        self.process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(60)
        end = time.monotonic() + 20
        while (left := self._processes()) and time.monotonic() < end:
            time.sleep(0.2)
        self._kill()
        return left

    def _processes(self) -> list[str]:
        command = ["ps", "-o", "pid=,args=", "-s", str(self.process.pid)]
        found = subprocess.run(command, capture_output=True, text=True, check=False).stdout
        return [line for line in found.splitlines() if "<defunct>" not in line]

    def _kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(20)
