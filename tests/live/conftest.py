"""A real vLLM for the tests marked `live`: from HALFBYTE_VLLM_BIN, or from the test environment.

Servers are started and stopped in the same way as by `halfbyte serve --run`.
"""

import contextlib
import json
import os
import socket
import urllib.error
import urllib.request
from pathlib import Path

import pytest
import quick_start
from emulated_server import cpu_options
from served_variants import KIMI_MINI

from halfbyte.engine.pipeline import quantize
from halfbyte.recipe.load import load_recipe
from halfbyte.serve.engine_log import EngineLog
from halfbyte.serve.engine_process import EngineProcess
from halfbyte.serve.installed import Installed, engine_environment, find_command, installed
from halfbyte.serve.run import wait_until_healthy
from halfbyte.ui.console import Output

STANDS_STILL_S = 600  # the CPU build compiles kernels when it starts


class Server:
    """A running `vllm serve`: its address and output."""

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
    """The vLLM to start; the test is skipped without one."""
    if find_command("vllm") is None:
        pytest.skip("no vLLM here: `make vllm`, or set HALFBYTE_VLLM_BIN to a `vllm`")
    return installed("vllm")


@pytest.fixture(scope="session")
def vllm_bin(vllm) -> Path:
    """The command `vllm`."""
    return vllm.command


@pytest.fixture(scope="session", name="cpu_options")
def local_cpu_options(vllm) -> list[str]:
    """Options of `vllm serve` for Kimi on a machine without a GPU; none with one."""
    return cpu_options(vllm)


@pytest.fixture(scope="session")
def start_vllm(tmp_path_factory, vllm_bin):
    """Return a context with a responding `vllm serve FOLDER OPTIONS...`, which leaves no process behind."""
    folder_of_logs = tmp_path_factory.mktemp("vllm")

    @contextlib.contextmanager
    def started(folder, *options: str):
        port = free_port()
        server = Server(f"http://127.0.0.1:{port}", folder_of_logs / f"vllm-{port}.log")
        listen = ["--host", "127.0.0.1", "--port", str(port)]
        command = [str(vllm_bin), "serve", str(folder), *listen, *quick_start.OPTIONS, *options]
        engine = EngineProcess(command, engine_environment(vllm_bin, quick_start.ENVIRONMENT), server.log)
        try:
            log, silent = EngineLog(server.log), Output(quiet=True)
            wait_until_healthy(engine, server.url, log, str(folder), out=silent, silent_s=STANDS_STILL_S)
            yield server
        finally:
            left = engine.stop()
        assert left == []

    return started


@pytest.fixture(scope="session")
def kimi_mini() -> Path:
    """kimi-mini, or the checkpoint in HALFBYTE_KIMI_MINI."""
    folder = Path(os.environ.get("HALFBYTE_KIMI_MINI", KIMI_MINI))
    if not list(folder.glob("*.safetensors")):
        pytest.skip(f"{folder} has no weights; HALFBYTE_KIMI_MINI names a folder that has")
    return folder


@pytest.fixture(scope="session")
def kimi_mini_twin(tmp_path_factory, kimi_mini) -> Path:
    """Its BF16 twin, which vLLM loads without a plugin."""
    twin = tmp_path_factory.mktemp("kimi-mini") / "bf16"
    quantize(kimi_mini, twin, load_recipe("kimi-k2.6-bf16"))
    return twin


@pytest.fixture(scope="session")
def kimi_mini_server(start_vllm, kimi_mini_twin, cpu_options):
    """The twin behind one vLLM for all tests that only query it."""
    options = [
        "--served-model-name", "kimi-mini", "--max-model-len", "4096", "--max-num-seqs", "8", "--enforce-eager",
        "--enable-auto-tool-choice", "--tool-call-parser", "kimi_k2", "--reasoning-parser", "kimi_k2",
    ]  # fmt: skip
    with start_vllm(kimi_mini_twin, *options, *cpu_options) as server:
        yield server
