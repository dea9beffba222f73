"""A real vLLM for the tests marked `live`: from HALFBYTE_VLLM_BIN, or from the environment the tests run in.

Servers are started, awaited and ended as `halfbyte serve --run` does it.
"""

import json
import socket
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from halfbyte.console import Output
from halfbyte.serve.engine_log import EngineLog
from halfbyte.serve.engine_process import EngineProcess
from halfbyte.serve.installed import Installed, engine_environment, find_command, installed
from halfbyte.serve.run import wait_until_healthy

STANDS_STILL_S = 600  # the CPU build compiles kernels when it starts
ENVIRONMENT = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_LOGGING_LEVEL": "INFO"}  # little memory: the models are tiny


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


@pytest.fixture(scope="session")
def vllm() -> Installed:
    """The vLLM to start; without one the test is skipped."""
    if find_command("vllm") is None:
        pytest.skip("no vLLM here: `make vllm`, or set HALFBYTE_VLLM_BIN to a `vllm`")
    return installed("vllm")


@pytest.fixture(scope="session")
def vllm_bin(vllm) -> Path:
    """The command `vllm`."""
    return vllm.command


@pytest.fixture(scope="session")
def cpu_options(vllm) -> list[str]:
    """Options of `vllm serve` for Kimi on a machine without a GPU; none with one."""
    return vllm.local_options(mla=True)


@pytest.fixture(scope="module")
def vllm_server(tmp_path_factory, vllm_bin):
    """Return a function that starts `vllm serve FOLDER OPTIONS...` and waits until it answers, once for a module."""
    running = []
    folder_of_logs = tmp_path_factory.mktemp("vllm")

    def start(folder, *options: str) -> Server:
        port = free_port()
        server = Server(f"http://127.0.0.1:{port}", folder_of_logs / f"vllm-{port}.log")
        command = [str(vllm_bin), "serve", str(folder), "--host", "127.0.0.1", "--port", str(port), *options]
        engine = EngineProcess(command, engine_environment(vllm_bin, ENVIRONMENT), server.log)
        running.append(engine)
        silent = Output(quiet=True)
        wait_until_healthy(engine, server.url, EngineLog(server.log), str(folder), out=silent, silent_s=STANDS_STILL_S)
        return server

    yield start
    assert [engine.stop() for engine in running] == [[] for _ in running]
