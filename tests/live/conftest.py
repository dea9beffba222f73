"""A real vLLM for the tests marked `live`: from HALFBYTE_VLLM_BIN, or from the environment the tests run in."""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

STARTS_IN_S = 600  # the CPU build compiles kernels when it starts
# No network, no telemetry, and few threads and little memory: the models of these tests are tiny.
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_LOGGING_LEVEL": "INFO",
}

# A CPU has one MLA kernel. It computes in FP32 here: in BF16 vLLM and oneDNN take the CPU's word that it has AMX, and a
# virtual machine that announces AMX without allowing it ends vLLM's worker at the first request with SIGILL (exit code
# -4, "trap invalid opcode" in dmesg). Setting ONEDNN_MAX_CPU_ISA is not enough: vLLM's own kernels ask the CPU as well.
ON_CPU = ["--dtype", "float32", "--attention-backend", "CPU_MLA"]


def vllm_command() -> Path | None:
    """The `vllm` to start, if there is one."""
    named = os.environ.get("HALFBYTE_VLLM_BIN")
    found = named or shutil.which("vllm", path=str(Path(sys.executable).parent)) or shutil.which("vllm")
    return Path(found) if found and Path(found).is_file() else None


class Server:
    """A running `vllm serve`: where it listens, and what it has printed."""

    def __init__(self, url: str, log: Path) -> None:
        self.url, self.log = url, log

    def ask(self, path: str, **request) -> dict:
        """POST a request; return the answer."""
        body = json.dumps(request).encode()
        call = urllib.request.Request(f"{self.url}{path}", body, {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(call, timeout=120) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            tail = "".join(self.log.read_text(errors="replace").splitlines(keepends=True)[-60:])
            raise AssertionError(f"{path}: {error.code} {error.read().decode(errors='replace')}\n{tail}") from error


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def healthy(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=2) as answer:
            return answer.status == 200
    except (urllib.error.URLError, OSError):
        return False


def wait_until_healthy(process: subprocess.Popen, server: Server) -> None:
    end = time.monotonic() + STARTS_IN_S
    while not healthy(server.url):
        tail = "".join(server.log.read_text(errors="replace").splitlines(keepends=True)[-60:])
        assert process.poll() is None, f"vLLM ended with {process.returncode}:\n{tail}"
        assert time.monotonic() < end, f"vLLM does not answer after {STARTS_IN_S} s:\n{tail}"
        time.sleep(1)


def end_group(process: subprocess.Popen) -> None:
    """End the server and the engine processes that it started."""
    for stop in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, stop)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(20)


@pytest.fixture(scope="session")
def cpu_options() -> list[str]:
    """Options of `vllm serve` for a machine without a GPU; none with one."""
    import torch

    return [] if torch.cuda.is_available() else ON_CPU


@pytest.fixture(scope="session")
def vllm_bin() -> Path:
    """The `vllm` to start; without one the test is skipped."""
    command = vllm_command()
    if command is None:
        pytest.skip("no vLLM here: `make vllm`, or set HALFBYTE_VLLM_BIN to a `vllm`")
    return command


@pytest.fixture(scope="module")
def vllm_server(tmp_path_factory, vllm_bin):
    """Return a function that starts `vllm serve FOLDER OPTIONS...` and waits until it answers, once for a module."""
    running = []
    folder_of_logs = tmp_path_factory.mktemp("vllm")

    def start(folder, *options: str) -> Server:
        port = free_port()
        server = Server(f"http://127.0.0.1:{port}", folder_of_logs / f"vllm-{port}.log")
        listen = ["--host", "127.0.0.1", "--port", str(port)]
        environment = {**ENVIRONMENT, **os.environ, "PATH": f"{vllm_bin.parent}:{os.environ.get('PATH', '')}"}
        environment.pop("PYTHONPATH", None)  # vLLM's environment need not be ours
        with server.log.open("wb") as log:
            process = subprocess.Popen(
                [str(vllm_bin), "serve", str(folder), *listen, *options],
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
                cwd=folder_of_logs,
                start_new_session=True,
            )
        running.append(process)
        wait_until_healthy(process, server)
        return server

    yield start
    for process in running:
        end_group(process)
