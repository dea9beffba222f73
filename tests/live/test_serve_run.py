"""A real vLLM under the runner: it answers, and Ctrl-C or the death of halfbyte stops it with all its processes.

The last tests use the real command, with the plugin that expands 4-bit weights.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import quick_start
from served_variants import change_tensors, make_variant

import halfbyte
from halfbyte.serve.engine_log import EngineLog
from halfbyte.serve.ports import held_port, listener_on
from halfbyte.serve.supervisor import descendants

pytestmark = pytest.mark.live

OPTIONS = ["--served-model-name", "mini", "--max-model-len", "512", "--max-num-seqs", "2", "--enforce-eager"]
STARTS_IN_S, ENDS_IN_S = 400, 60
RUNNER = """
import sys
from pathlib import Path
from halfbyte.ui.console import Output
from halfbyte.errors import HalfbyteError
from halfbyte.serve.run import run_engine
from halfbyte.serve.engine_process import then_shell
log, url, then, *command = sys.argv[1:]
out, then = Output(), then_shell(then, "mini") if then else None
small = {"VLLM_CPU_KVCACHE_SPACE": "1"}
try:
    code = run_engine(command, small, url, log=Path(log), out=out, served_name="mini", then=then)
except HalfbyteError as error:
    out.error(error)
    code = error.exit_code
sys.exit(code)
"""
ASK = """curl -sf "$HALFBYTE_URL/v1/completions" -H 'Content-Type: application/json' \
  -d '{"model": "'$HALFBYTE_MODEL'", "prompt": "Q: 2 + 3 =", "max_tokens": 4, "temperature": 0}' > "$ANSWER" """


@pytest.fixture
def run(tmp_path, vllm, cpu_options):
    """Return a function that starts vLLM under the runner in a separate process."""
    made, held = [], contextlib.ExitStack()

    def start(folder, *options, then="", **environment) -> subprocess.Popen:
        port = held.enter_context(held_port(None))
        url, log = f"http://127.0.0.1:{port}", tmp_path / "engine.log"
        listen = ["--host", "127.0.0.1", "--port", str(port)]
        command = [str(vllm.command), "serve", str(folder), *listen, *OPTIONS, *cpu_options, *options]
        with (tmp_path / "said").open("wb") as said:
            program = [sys.executable, "-c", RUNNER, str(log), url, then, *command]
            process = subprocess.Popen(program, stdout=said, stderr=said, env={**os.environ, **environment})
        made.append(process)
        process.log, process.said, process.port = log, tmp_path / "said", port
        return process

    with held:
        yield start
    for process in made:
        process.terminate()
        process.wait(ENDS_IN_S)


def until(true, seconds: float, process) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, process.said.read_text()
        time.sleep(0.1)


def names(processes: list[int]) -> dict[int, str]:
    """Return the names of the running ones."""
    found = {}
    for pid in processes:
        with contextlib.suppress(OSError):
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
                found[pid] = Path(f"/proc/{pid}/comm").read_text().strip()
    return found


def started_with(setting: str) -> list[str]:
    """Return the processes with this text in their environment, with any parent."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if setting.encode() in (folder / "environ").read_bytes().split(b"\0"):
                found.append((folder / "comm").read_text().strip())
    return found


def test_it_answers_and_ctrl_c_leaves_no_process(run, kimi_mini_twin, tmp_path):
    answer = tmp_path / "answer"
    process = run(kimi_mini_twin, then=f"{ASK}; exec sleep 600", ANSWER=str(answer))
    until(lambda: process.poll() is not None or (answer.exists() and answer.stat().st_size), STARTS_IN_S, process)
    assert process.poll() is None, process.said.read_text()
    until(lambda: "}" in answer.read_text(), ENDS_IN_S, process)
    assert json.loads(answer.read_text())["usage"]["completion_tokens"] == 4
    tree = descendants(process.pid)
    assert len(tree) >= 5, names(tree)  # the supervisor, a server, an engine core, a worker, the shell
    process.send_signal(signal.SIGINT)
    assert process.wait(ENDS_IN_S) == 130
    assert names(tree) == {}
    assert listener_on(process.port) is None
    said = process.said.read_text()
    phases = [line.rpartition(",")[0] for line in said.splitlines()]
    assert phases.index("starting") < phases.index("ready")
    assert any(phase.startswith(("loading weights", "profiling")) for phase in phases), phases
    assert "Traceback" not in said


def test_when_halfbyte_is_killed_vllm_ends_too(run, kimi_mini_twin):
    process = run(kimi_mini_twin, *quick_start.OPTIONS, **quick_start.ENVIRONMENT)

    def loads() -> bool:
        if not process.log.exists():
            return False
        log = EngineLog(process.log)
        log.follow()
        return log.phase != "starting"

    until(loads, STARTS_IN_S, process)
    tree = descendants(process.pid)
    assert len(tree) >= 3, names(tree)  # the supervisor, a server, an engine core
    process.kill()
    process.wait()
    until(lambda: not names(tree), ENDS_IN_S, process)


def test_a_failed_start_shows_the_engines_error_and_its_cause(run, kimi_mini_twin, tmp_path):
    broken = shutil.copytree(kimi_mini_twin, tmp_path / "broken")
    config = json.loads((broken / "config.json").read_text())
    config["text_config"]["n_routed_experts"] = 24  # of 32 in the files
    (broken / "config.json").write_text(json.dumps(config))
    process = run(broken, *quick_start.OPTIONS, **quick_start.ENVIRONMENT)
    assert process.wait(STARTS_IN_S) == 3
    said = process.said.read_text()
    assert "✗ the engine did not start: exit code 1\n  KeyError: 'layers.1.mlp.experts.24." in said
    assert "cause: the checkpoint has more experts than n_routed_experts in config.json" in said
    assert f"where {process.log}" in said
    assert "  fix   set n_routed_experts" in said


EXPERT = "language_model.model.layers.1.mlp.experts.7.up_proj"
SMALL = ["--emulate", "--context", "512", "--text-only", "--set", "enforce_eager=true"]


@pytest.fixture(scope="module")
def two_layers(tmp_path_factory):
    return make_variant("nvfp4-two-layers", tmp_path_factory.mktemp("variants"))


@pytest.fixture
def serve(tmp_path, vllm):
    """Return a function that runs `halfbyte serve FOLDER --run ...` in a new folder."""
    made = []

    def start(folder, *options, **environment) -> subprocess.Popen:
        program = [sys.executable, "-m", "halfbyte", "serve", str(folder), "--run", *options]
        own = {"PYTHONPATH": str(Path(halfbyte.__file__).parents[1]), "HALFBYTE_VLLM_BIN": str(vllm.command)}
        with (tmp_path / "said").open("wb") as said:
            process = subprocess.Popen(
                program, stdout=said, stderr=said, env={**os.environ, **own, **environment}, cwd=tmp_path
            )
        made.append(process)
        process.said = tmp_path / "said"
        return process

    yield start
    for process in made:
        process.terminate()
        process.wait(ENDS_IN_S)


def test_the_command_serves_a_4_bit_checkpoint_on_this_machine(serve, two_layers, tmp_path):
    answer = tmp_path / "answer"
    process = serve(two_layers, *SMALL, "--exec", ASK, ANSWER=str(answer))
    assert process.wait(STARTS_IN_S) == 0, process.said.read_text()
    assert json.loads(answer.read_text())["usage"]["completion_tokens"] == 4
    said = process.said.read_text()
    assert "ready, " in said
    assert "Traceback" not in said
    assert started_with(f"ANSWER={answer}") == []


@pytest.mark.slow  # the refusal is also seen in test_emulated_servers.py, the sentence in the test above
def test_the_command_shows_why_a_damaged_checkpoint_is_not_served(serve, two_layers, tmp_path):
    """Gate and up with two scales, which headers do not show: vLLM alone would use one of them for both."""
    broken = shutil.copytree(two_layers, tmp_path / "broken")
    shutil.rmtree(broken / "halfbyte", ignore_errors=True)

    def double(tensors):
        if f"{EXPERT}.weight_scale_2" in tensors:
            tensors[f"{EXPERT}.weight_scale_2"] *= 2

    change_tensors(broken, double)
    process = serve(broken, *SMALL, "--exec", "false")
    assert process.wait(STARTS_IN_S) == 3, process.said.read_text()
    lines = process.said.read_text().splitlines()
    what, error, *_ = [line for line in lines if "not start" in line or "CheckpointError" in line]
    assert what == "✗ the engine did not start: exit code 1"
    assert "halfbyte.errors.CheckpointError: weight_scale_2 of gate_proj and up_proj differ" in error
    assert "ready" not in process.said.read_text()
