"""`serve OUT --run --guard`: the proxy's URL is reported and passed on, and no process is left over."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from halfbyte.errors import MachineError
from halfbyte.serve.loop_proxy.server import running_proxy
from halfbyte.serve.ports import held_port, listener_on, listening_process
from halfbyte.serve.run import run_engine
from halfbyte.ui.console import Output

pytest.importorskip("aiohttp")
FAKE = Path(__file__).parent / "fake_engine.py"
SOON_S = 20
RUNNER = """
import sys
from pathlib import Path
from halfbyte.ui.console import Output
from halfbyte.serve.loop_proxy.server import running_proxy
from halfbyte.serve.run import run_engine
log, engine, proxy, *command = sys.argv[1:]
with running_proxy(f"http://127.0.0.1:{engine}", int(proxy)) as guard:
    sys.exit(run_engine(command, {}, f"http://127.0.0.1:{engine}", log=Path(log), out=Output(), served_name="fake",
                        patience=0.1, proxy=guard))
"""


@pytest.fixture
def ports():
    with contextlib.ExitStack() as held:  # other tests run at the same time
        yield [held.enter_context(held_port(None)) for _ in range(2)]


def soon(true) -> None:
    end = time.monotonic() + SOON_S
    while not true():
        assert time.monotonic() < end
        time.sleep(0.05)


def command(port: int, *faults: str) -> list[str]:
    return [sys.executable, str(FAKE), str(port), *faults]


def answers(port: int) -> bool:
    return urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5).status == 200


@contextlib.contextmanager
def running(folder: Path, ports: list[int], *faults: str):
    engine, proxy = ports
    said = folder / "said"
    words = [sys.executable, "-c", RUNNER, str(folder / "log"), str(engine), str(proxy), *command(engine, *faults)]
    process = subprocess.Popen(words, stdout=said.open("wb"), stderr=subprocess.STDOUT, env=os.environ)
    try:
        soon(lambda: "Ctrl-C" in said.read_text() or process.poll() is not None)
        yield process, said
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_guard_answers_at_the_url_that_is_said_and_stopping_ends_both(tmp_path, ports, number):
    engine, proxy = ports
    with running(tmp_path, ports) as (process, said):
        text = said.read_text()
        assert f"curl http://127.0.0.1:{proxy}/v1/chat/completions" in text
        assert f"curl http://127.0.0.1:{engine}" not in text
        assert answers(proxy) and listening_process(proxy) not in (None, listening_process(engine))
        process.send_signal(number)
        assert process.wait(SOON_S) == 128 + number
    assert listener_on(engine) is None and listener_on(proxy) is None
    assert "Traceback" not in said.read_text()


def test_both_end_when_halfbyte_is_killed(tmp_path, ports):
    with running(tmp_path, ports) as (process, _):
        process.kill()
        process.wait()
        soon(lambda: listener_on(ports[0]) is None and listener_on(ports[1]) is None)


def test_an_engine_that_dies_and_a_guard_that_dies_are_errors(tmp_path, ports):
    engine, proxy = ports
    with running(tmp_path, ports, "dies") as (process, said):
        assert process.wait(SOON_S) != 0
        assert "out of ideas" in said.read_text() and listener_on(proxy) is None
    with running(tmp_path, ports) as (process, said):
        guard = int(listening_process(proxy).name)
        os.kill(guard, signal.SIGKILL)
        assert process.wait(SOON_S) != 0
        assert "the loop-stopping proxy exited" in said.read_text() and listener_on(engine) is None


def test_what_is_run_then_gets_the_guards_url(tmp_path, ports):
    engine, proxy = ports
    url, got = f"http://127.0.0.1:{engine}", []

    def then(given: str) -> int:
        got.append((given, answers(proxy)))
        return 7

    with running_proxy(url, proxy) as guard:
        options = {"log": tmp_path / "log", "out": Output(quiet=True), "served_name": "fake", "patience": 0.1}
        assert run_engine(command(engine), {}, url, then=then, proxy=guard, **options) == 7
    assert got == [(f"http://127.0.0.1:{proxy}", True)]


def test_until_the_engine_answers_the_guard_says_so(ports):
    with running_proxy(f"http://127.0.0.1:{ports[0]}", ports[1]), pytest.raises(urllib.error.HTTPError) as refused:
        answers(ports[1])
    assert refused.value.code == 502 and str(ports[0]) in json.load(refused.value)["error"]["message"]


def test_a_port_that_is_taken_is_said_before_the_engine_starts():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen(1)
        port = taken.getsockname()[1]
        said = f"the loop-stopping proxy did not start: port {port} cannot be used"
        with pytest.raises(MachineError, match=said), running_proxy("http://127.0.0.1:9", port):
            pytest.fail("it started")
