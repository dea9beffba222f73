"""Engines that hang, die, do not listen or write garbage: the runner's messages, and no leftover process."""

import contextlib
import http.server
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from quiet_server import QuietServer

from halfbyte.errors import MachineError
from halfbyte.serve.engine_log import LINE_CHARACTERS, EngineLog
from halfbyte.serve.engine_process import EngineProcess, then_shell
from halfbyte.serve.ports import held_port, listener_on, own_listener
from halfbyte.serve.run import healthy, run_engine
from halfbyte.ui.console import Output

FAKE = Path(__file__).parent / "fake_engine.py"
SOON_S = 30  # a machine may be busy; nothing waits for it otherwise
QUICK = {"patience": 0.1}  # these engines have nothing to tidy up
# What `halfbyte serve --run` does, without a checkpoint.
RUNNER = """
import sys
from pathlib import Path
from halfbyte.ui.console import Output
from halfbyte.serve.run import run_engine
from halfbyte.serve.engine_process import then_shell
log, url, then, patience, *command = sys.argv[1:]
then = then_shell(then, "fake") if then else None
options = {"log": Path(log), "out": Output(), "then": then, "patience": float(patience)}
sys.exit(run_engine(command, {}, url, served_name="fake", **options))
"""


class Run:
    """A fake engine's command, and the files and processes that belong to it."""

    def __init__(self, folder: Path, port: int, *faults: str) -> None:
        self.port = port
        self.url, self.log, self.said = f"http://127.0.0.1:{self.port}", folder / "engine.log", folder / "said"
        self.command = [sys.executable, str(FAKE), str(self.port), *faults]

    def here(self, **options) -> int:
        return run_engine(self.command, {}, self.url, log=self.log, out=Output(), served_name="fake", **QUICK | options)

    def apart(self, then: str = "", patience: float = 0.1) -> subprocess.Popen:
        program = [sys.executable, "-c", RUNNER, str(self.log), self.url, then, str(patience), *self.command]
        plain = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
        return subprocess.Popen(program, stdout=self.said.open("wb"), stderr=subprocess.STDOUT, env=plain)

    def processes(self) -> list[int]:
        """Return the process ids in the engine's log, once they are there."""
        soon(lambda: self.log.exists() and "processes" in self.log.read_text(errors="replace"))
        found = re.search(r"^processes (\d+) (\d+)$", self.log.read_text(errors="replace"), re.MULTILINE)
        return [int(number) for number in found.groups()]

    def nothing_is_left(self) -> bool:
        soon(lambda: not any(map(lives, self.processes())), lambda: f"one of {self.processes()} is left")
        return listener_on(self.port) is None


def soon(true, otherwise=lambda: "") -> None:
    end = time.monotonic() + SOON_S
    while not true():
        assert time.monotonic() < end, otherwise()
        time.sleep(0.02)


def lives(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


@pytest.fixture
def engine(tmp_path):
    with contextlib.ExitStack() as held:  # other tests run at the same time
        yield lambda *faults: Run(tmp_path, held.enter_context(held_port(None)), *faults)


def test_the_proof_would_notice_a_process(engine):
    run = engine()
    process = subprocess.Popen(run.command, stdout=run.log.open("wb"))
    below = run.processes()[1]
    process.kill()
    process.wait()
    assert lives(below)  # its parent is gone, and it is in another session
    os.kill(below, signal.SIGKILL)
    assert run.nothing_is_left()


def test_the_url_is_handed_on_and_the_exit_code_comes_back(engine, tmp_path):
    run, said = engine(), tmp_path / "said"
    assert run.here(then=then_shell(f'echo "$HALFBYTE_URL $HALFBYTE_MODEL" > {said}; exit 9', "fake")) == 9
    assert said.read_text() == f"{run.url} fake\n"
    assert run.nothing_is_left()


def test_what_was_handed_the_url_knows_how_long_the_engine_took(engine, tmp_path, monkeypatch):
    monkeypatch.setenv("HALFBYTE_BOOT", "")
    run, said = engine(), tmp_path / "said"
    assert run.here(then=then_shell(f'echo "$HALFBYTE_BOOT" > {said}', "fake")) == 0
    boot = json.loads(said.read_text())
    assert boot["url"] == run.url and 0 < boot["seconds"] < SOON_S and boot["cached"] is None


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_ends_everything(engine, number, code):
    run = engine()
    runner = run.apart()
    soon(lambda: run.said.exists() and "Ctrl-C" in run.said.read_text())
    runner.send_signal(number)
    runner.wait(SOON_S)
    said = run.said.read_text()
    assert (runner.returncode, f"{signal.Signals(number).name}; stopping" in said) == (code, True)
    assert f"curl {run.url}/v1/chat/completions" in said
    assert "Traceback" not in said
    assert run.nothing_is_left()


# The shell, its foreground and background processes, and one in its own session.
HANDED_ON = (
    "echo $$ > {pid}; exec sleep 600",
    "sh -c 'echo $$ > {pid}; exec sleep 600'; echo done",
    "(sleep 600 & echo $! > {pid}); sleep 600",
    "setsid sh -c 'echo $$ > {pid}; exec sleep 600'; true",
)


@pytest.mark.parametrize("command", HANDED_ON)
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9)])
def test_what_was_handed_the_url_ends_with_halfbyte(engine, tmp_path, command, number, code):
    run, pid = engine(), tmp_path / "pid"
    runner = run.apart(command.format(pid=pid))
    soon(lambda: pid.exists() and pid.read_text().strip(), lambda: run.said.read_text() + run.log.read_text())
    runner.send_signal(number)
    assert runner.wait(SOON_S) == code
    soon(lambda: not lives(int(pid.read_text())))
    assert run.nothing_is_left()


def test_a_command_in_front_shares_input_and_group_and_leaves_nothing(tmp_path):
    said = tmp_path / "said"
    command = f"read line; echo $line $(ps -o pgid= -p $$) > {said}; (sleep 600 & echo $! >> {said}); exit 7"
    program = "import sys; from halfbyte.serve.engine_process import then_shell; "
    program += f"sys.exit(then_shell({command!r}, 'm')('url'))"
    runner = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, start_new_session=True)
    runner.communicate(b"hello\n", SOON_S)
    assert runner.returncode == 7
    line, behind = said.read_text().splitlines()
    assert line == f"hello {runner.pid}"
    assert not lives(int(behind))


def test_a_second_ctrl_c_kills_at_once(engine):
    run = engine("deaf", "hangs")
    runner = run.apart(patience=1)
    run.processes()
    time.sleep(0.3)
    start = time.monotonic()
    runner.send_signal(signal.SIGINT)
    time.sleep(0.3)
    assert runner.poll() is None  # the first signal is polite and is ignored
    runner.send_signal(signal.SIGINT)
    assert runner.wait(SOON_S) == 130
    assert time.monotonic() - start < 5  # of the 20 s that an engine gets
    assert run.nothing_is_left()


@pytest.mark.parametrize("fault", ["", "hangs"])
def test_nothing_is_left_when_halfbyte_is_killed(engine, fault):
    run = engine(fault)
    runner = run.apart()
    run.processes()
    runner.kill()
    runner.wait()
    assert run.nothing_is_left()


def test_a_killed_supervisor_takes_the_engine_along(engine):
    run = engine()
    process = EngineProcess(run.command, os.environ, run.log)
    first, below = run.processes()
    process._supervisor.kill()
    soon(lambda: not lives(first))
    assert process.exit_code() == -signal.SIGKILL
    os.kill(below, signal.SIGKILL)  # it ignores the engine's end, so the test must kill it


def test_what_ignores_every_polite_signal_is_killed(engine):
    run = engine("deaf", "hangs")
    process = EngineProcess(run.command, os.environ, run.log, patience=0.02)
    run.processes()
    assert process.stop() == []
    assert process.exit_code() == -signal.SIGKILL
    assert run.nothing_is_left()


def test_a_hanging_engine_is_given_up(engine):
    run = engine("hangs")
    with pytest.raises(MachineError, match="does not respond and has logged nothing for 1 s"):
        run.here(silent_s=1)
    assert run.nothing_is_left()


def test_an_engine_that_dies_while_it_serves_is_an_error(engine, capsys):
    run = engine("dies")
    with pytest.raises(MachineError) as error:
        run.here()
    assert error.value.what == "the engine exited while serving: exit code 7\nRuntimeError: out of ideas"
    assert run.nothing_is_left()


def test_an_engine_that_dies_under_a_check_is_never_a_success(engine, capsys):
    run = engine("dies")
    waits = f"while kill -0 {os.getpid()} && curl -s {run.url}/health; do sleep 0.1; done; sleep 1; true"
    assert run.here(then=then_shell(waits, "fake")) == 3
    assert "the engine exited while serving: exit code 7" in capsys.readouterr().err


def test_control_characters_of_a_log_reach_no_terminal(engine):
    run = engine("control")
    with pytest.raises(MachineError) as error:
        run.here()
    assert error.value.what == "the engine did not start: exit code 1\nValueError: red left zero"
    assert run.nothing_is_left()


def test_a_line_without_an_end_takes_no_memory(engine):
    run = engine("endless")
    seen = {}

    def look(url: str) -> int:
        log = EngineLog(run.log)
        log.follow()
        seen.update(nbytes=run.log.stat().st_size, kept=sum(map(len, log.lines())), phase=log.phase)
        return 0

    assert run.here(then=look) == 0
    assert seen["nbytes"] > 4_000_000
    assert seen["kept"] < LINE_CHARACTERS + 200
    assert seen["phase"] == "loading weights"


def test_a_command_that_cannot_be_started(engine, tmp_path):
    run = engine()
    run.command = [str(tmp_path / "no-engine")]
    with pytest.raises(MachineError, match=r"exit code 127\ncannot start .*no-engine: No such file or directory"):
        run.here()


def test_a_port_that_is_taken_is_said_before_anything_starts(tmp_path):
    with socket.socket() as anywhere:
        anywhere.bind(("127.0.0.1", 0))
        run = Run(tmp_path, anywhere.getsockname()[1])
    process = EngineProcess(run.command, os.environ, run.log)
    soon(lambda: healthy(run.url))
    with pytest.raises(MachineError) as error, held_port(run.port):
        pass
    assert re.fullmatch(rf"port {run.port} is in use by python\S* \(process {run.processes()[0]}\)", error.value.what)
    assert re.fullmatch(r"--port 8\d\d\d is free", error.value.fix)
    process.stop()
    with held_port(run.port) as port:
        assert port == run.port


def test_two_starts_never_choose_the_same_port():
    program = (
        "from halfbyte.serve.ports import held_port\nwith held_port(None) as port: print(port, flush=True); input()"
    )
    with held_port(None) as first:
        other = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        second = int(other.stdout.readline())
        with held_port(None) as third:
            assert len({first, second, third}) == 3
        with pytest.raises(MachineError, match=f"port {second} is reserved by another `halfbyte serve --run`"):
            held_port(second).__enter__()
        other.kill()  # no claim outlives its process
        other.communicate()
        with held_port(second) as port:
            assert port == second


class Stranger(http.server.BaseHTTPRequestHandler):
    """A healthy server with a model of some name."""

    model = "theirs"

    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps({"data": [{"id": self.model}]}).encode())

    def log_message(self, *_):
        pass


@pytest.fixture
def stranger():
    """Return a function that starts a server on a port in a process that does not belong to the engine."""
    made = []

    class Shared(QuietServer):
        allow_reuse_port = True  # as vLLM does: two may then listen side by side

    def start(port: int) -> None:
        made.append(Shared(("127.0.0.1", port), Stranger))
        threading.Thread(target=made[-1].serve_forever, daemon=True).start()

    yield start
    for server in made:
        server.shutdown()
        server.server_close()


def test_a_stranger_on_the_port_is_never_taken_for_the_engine(engine, stranger):
    run = engine("hangs")
    comes = threading.Thread(target=lambda: run.processes() and stranger(run.port))
    comes.start()
    with pytest.raises(MachineError) as error:
        run.here(then=lambda _url: pytest.fail("it was handed on"), silent_s=SOON_S)
    comes.join()
    said = rf"another server listens on the engine's port {run.port}: .+ \(process {os.getpid()}\)"
    assert re.fullmatch(said, error.value.what), error.value.what
    soon(lambda: not any(map(lives, run.processes())))


def test_a_stranger_beside_the_engine_is_seen(engine, stranger):
    run = engine("shares")
    process = EngineProcess(run.command, os.environ, run.log, **QUICK)
    soon(lambda: healthy(run.url))
    assert own_listener(run.port, process.processes) is True
    stranger(run.port)
    with pytest.raises(MachineError, match="another server listens"):
        own_listener(run.port, process.processes)
    process.stop()


def test_who_only_looks_whether_the_port_is_free_is_no_stranger(engine, monkeypatch):
    run = engine()
    looks = socket.create_server(("127.0.0.1", run.port))
    monkeypatch.setattr("halfbyte.serve.ports.time.sleep", lambda _seconds: looks.close())
    assert own_listener(run.port, list) is False


def test_a_process_of_ours_that_has_just_begun_is_no_stranger(engine):
    run, found = engine(), iter([[], [os.getpid()]])
    with socket.create_server(("127.0.0.1", run.port)):
        assert own_listener(run.port, lambda: next(found)) is True


@pytest.mark.parametrize("model", ["theirs", "fake"])
def test_where_proc_does_not_tell_the_models_name_decides(engine, stranger, monkeypatch, model):
    monkeypatch.setattr("halfbyte.serve.ports._listening_sockets", lambda _port: None)
    monkeypatch.setattr(Stranger, "model", model)
    run = engine("hangs")
    stranger(run.port)
    if model == "fake":
        assert run.here(then=lambda _url: 5) == 5
        return
    with pytest.raises(MachineError, match=f"another server listens on the engine's port {run.port}"):
        run.here(then=lambda _url: 5)
