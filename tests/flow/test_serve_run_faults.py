"""Engines that hang, die, do not listen or write rubbish: what the runner says, and that no process stays behind."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from halfbyte.console import Output
from halfbyte.errors import MachineError
from halfbyte.serve.engine_log import LINE_CHARACTERS, EngineLog
from halfbyte.serve.engine_process import EngineProcess
from halfbyte.serve.ports import chosen_port, listener_on, next_free_port
from halfbyte.serve.run import healthy, run_engine
from halfbyte.serve.then import then_shell

FAKE = Path(__file__).parent / "fake_engine.py"
SOON_S = 8
QUICK = {"patience": 0.1}  # these engines have nothing to tidy up
# What `halfbyte serve --run` does, without a checkpoint.
RUNNER = """
import sys
from pathlib import Path
from halfbyte.console import Output
from halfbyte.serve.run import run_engine
from halfbyte.serve.then import then_shell
log, url, then, patience, *command = sys.argv[1:]
then = then_shell(then, "fake") if then else None
options = {"log": Path(log), "out": Output(), "then": then, "patience": float(patience)}
sys.exit(run_engine(command, {}, url, served_name="fake", **options))
"""


class Run:
    """A fake engine's command, and the files and processes that belong to it."""

    def __init__(self, folder: Path, *faults: str) -> None:
        self.port = next_free_port()
        self.url, self.log, self.said = f"http://127.0.0.1:{self.port}", folder / "engine.log", folder / "said"
        self.command = [sys.executable, str(FAKE), str(self.port), *faults]

    def here(self, **options) -> int:
        return run_engine(self.command, {}, self.url, log=self.log, out=Output(), served_name="fake", **QUICK | options)

    def apart(self, then: str = "", patience: float = 0.1) -> subprocess.Popen:
        program = [sys.executable, "-c", RUNNER, str(self.log), self.url, then, str(patience), *self.command]
        plain = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
        return subprocess.Popen(program, stdout=self.said.open("wb"), stderr=subprocess.STDOUT, env=plain)

    def processes(self) -> list[int]:
        """The ids that the engine wrote into its log, once it has."""
        soon(lambda: self.log.exists() and "processes" in self.log.read_text(errors="replace"))
        found = re.search(r"^processes (\d+) (\d+)$", self.log.read_text(errors="replace"), re.MULTILINE)
        return [int(number) for number in found.groups()]

    def nothing_is_left(self) -> bool:
        soon(lambda: not any(map(lives, self.processes())), f"one of {self.processes()} is left")
        return listener_on(self.port) is None


def soon(true, otherwise: str = "") -> None:
    end = time.monotonic() + SOON_S
    while not true():
        assert time.monotonic() < end, otherwise
        time.sleep(0.02)


def lives(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


@pytest.fixture
def engine(tmp_path):
    return lambda *faults: Run(tmp_path, *faults)


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


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_ends_everything(engine, number, code):
    run = engine()
    runner = run.apart()
    soon(lambda: run.said.exists() and "Ctrl-C" in run.said.read_text())
    runner.send_signal(number)
    runner.wait(SOON_S)
    said = run.said.read_text()
    assert (runner.returncode, f"{signal.Signals(number).name}; ending" in said) == (code, True)
    assert f"curl {run.url}/v1/chat/completions" in said
    assert "Traceback" not in said
    assert run.nothing_is_left()


def test_ctrl_c_ends_what_was_handed_the_url_too(engine, tmp_path):
    run, pid = engine(), tmp_path / "pid"
    runner = run.apart(f"echo $$ > {pid}; exec sleep 600")
    soon(lambda: pid.exists() and pid.read_text().strip())
    runner.send_signal(signal.SIGINT)
    assert runner.wait(SOON_S) == 130
    assert not lives(int(pid.read_text()))
    assert run.nothing_is_left()


def test_a_second_ctrl_c_kills_at_once(engine):
    run = engine("deaf", "hangs")
    runner = run.apart(patience=1)
    run.processes()
    time.sleep(0.3)
    start = time.monotonic()
    runner.send_signal(signal.SIGINT)
    time.sleep(0.3)
    assert runner.poll() is None  # the first one is polite, and nobody listens
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


def test_what_was_handed_the_url_ends_with_halfbyte(engine, tmp_path):
    run, pid = engine(), tmp_path / "pid"
    runner = run.apart(f"echo $$ > {pid}; exec sleep 600")
    soon(lambda: pid.exists() and pid.read_text().strip())
    runner.kill()
    runner.wait()
    soon(lambda: not lives(int(pid.read_text())))
    assert run.nothing_is_left()


def test_a_killed_keeper_takes_the_engine_along(engine):
    run = engine()
    process = EngineProcess(run.command, os.environ, run.log)
    first, below = run.processes()
    process._keeper.kill()
    soon(lambda: not lives(first))
    assert process.exit_code() == -signal.SIGKILL
    os.kill(below, signal.SIGKILL)  # what ignores the engine's end, nobody is left to end


def test_what_ignores_every_polite_signal_is_killed(engine):
    run = engine("deaf", "hangs")
    process = EngineProcess(run.command, os.environ, run.log, patience=0.02)
    run.processes()
    assert process.stop() == []
    assert process.exit_code() == -signal.SIGKILL
    assert run.nothing_is_left()


def test_a_hanging_engine_is_given_up(engine):
    run = engine("hangs")
    with pytest.raises(MachineError, match="does not answer, and its log stands still for 1 s"):
        run.here(silent_s=1)
    assert run.nothing_is_left()


def test_an_engine_that_dies_while_it_serves_is_an_error(engine, capsys):
    run = engine("dies")
    with pytest.raises(MachineError) as error:
        run.here()
    assert error.value.what == "the engine ended while serving: exit code 7\nRuntimeError: out of ideas"
    assert run.nothing_is_left()


def test_an_engine_that_dies_under_a_check_is_never_a_success(engine, capsys):
    run = engine("dies")
    waits = f"while kill -0 {os.getpid()} && curl -s {run.url}/health; do sleep 0.1; done; sleep 1; true"
    assert run.here(then=then_shell(waits, "fake")) == 3
    assert "the engine ended while serving: exit code 7" in capsys.readouterr().err


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


def test_a_port_that_is_taken_is_said_before_anything_starts(engine):
    run = engine()
    process = EngineProcess(run.command, os.environ, run.log)
    soon(lambda: healthy(run.url))
    with pytest.raises(MachineError) as error:
        chosen_port(run.port)
    assert re.fullmatch(rf"port {run.port} is in use by python\S* \(process {run.processes()[0]}\)", error.value.what)
    assert chosen_port(None) > run.port  # the next one
    process.stop()
    assert chosen_port(run.port) == run.port
