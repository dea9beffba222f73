"""Sandbox escapes. Each succeeds without a sandbox, in a harmless form; none succeeds in it."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from halfbyte.sandbox.process import Limits, Ran
from halfbyte.sandbox.tiers import Tier, Unsandboxed, run_python

HARM = "HARM DONE"
QUICK = Limits(seconds=20)


def tried(attack: str, tier: Tier, limits: Limits = QUICK) -> Ran:
    """Run an attack without a sandbox, where it must succeed, and in the sandbox."""
    bare = Unsandboxed().run(attack, limits)
    assert HARM in bare.stdout, f"the attack is none: {bare}"
    ran = run_python(attack, tier=tier, limits=limits)
    assert HARM not in ran.stdout
    return ran


@pytest.fixture
def open_folder(tmp_path: Path) -> Path:
    """A folder that every user can read: a missing file in it is hidden, not forbidden."""
    for folder in [tmp_path, *tmp_path.parents]:
        if folder.owner() == Path.home().owner() and folder.is_relative_to("/tmp") and folder != Path("/tmp"):
            folder.chmod(0o777)
    return tmp_path


def test_a_secret_file_is_not_there(isolated: Tier, open_folder: Path):
    secret = open_folder / "secret"
    secret.write_text("the key")
    ran = tried(f"if open({str(secret)!r}).read() == 'the key': print({HARM!r})", isolated)
    assert ran.code == 1 and "FileNotFoundError" in ran.stderr


@pytest.mark.parametrize("path", ["/etc/passwd", "/etc/hostname", "/proc/1/environ", "/root", str(Path.home()), "/sys"])
def test_the_rest_of_the_machine_is_not_there(isolated: Tier, path: str):
    program = f"import os\ntry: print(os.listdir({path!r}))\nexcept NotADirectoryError: print(open({path!r}).read())"
    ran = run_python(program, tier=isolated)
    inside = isolated.engine.interpreter.executable
    if inside.is_relative_to(path):  # the way to the interpreter is there, as folders with nothing else in them
        assert ran.stdout == f"['{inside.relative_to(path).parts[0]}']\n"
    else:
        assert "FileNotFoundError" in ran.stderr and ran.stdout == ""


def test_the_checkout_is_not_there(isolated: Tier):
    ran = tried(f"import os\nif os.listdir({str(Path(__file__).parent)!r}): print({HARM!r})", isolated)
    assert "FileNotFoundError" in ran.stderr


def test_the_environment_is_not_there(isolated: Tier, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OPENAI_API_KEY", "the key")
    attack = f"import os\nprint(sorted(os.environ), {HARM!r} if 'the key' in os.environ.values() else '')"
    ran = tried(attack, isolated)
    assert ran.stdout.strip() == "['HOME', 'LC_CTYPE', 'PATH', 'PWD', 'PYTHONHASHSEED']"


def test_loopback_is_another_one(isolated: Tier):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        ran = tried(f"import socket\nsocket.create_connection(('127.0.0.1', {port}), 5)\nprint({HARM!r})", isolated)
    assert "ConnectionRefusedError" in ran.stderr


def test_an_abstract_unix_socket_is_not_reached(isolated: Tier):
    name = f"\0halfbyte-{os.getpid()}"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(name)
        server.listen()
        ran = tried(f"import socket\nsocket.socket(socket.AF_UNIX).connect({name!r})\nprint({HARM!r})", isolated)
    assert "ConnectionRefusedError" in ran.stderr


@pytest.mark.parametrize(
    "call", ["socket.create_connection(('8.8.8.8', 53), 3)", "socket.getaddrinfo('example.org', 80)"]
)
def test_there_is_no_network_outside(isolated: Tier, call: str):
    ran = run_python(f"import socket\n{call}\nprint({HARM!r})", tier=isolated)
    assert ran.code == 1 and ("unreachable" in ran.stderr or "gaierror" in ran.stderr)


@pytest.mark.parametrize("family", [40, 16, 17])  # AF_VSOCK, AF_NETLINK, AF_PACKET
def test_sockets_that_pass_a_namespace_are_refused(isolated: Tier, family: int):
    ran = run_python(f"import socket\nsocket.socket({family}, 3)", tier=isolated)
    assert "PermissionError: [Errno 1]" in ran.stderr


def test_a_fork_bomb_stops_at_the_limit(isolated: Tier):
    attack = f"""
import os, time
for number in range(40):
    if not os.fork():
        time.sleep(5)
        os._exit(0)
print({HARM!r})
"""
    began = time.monotonic()
    ran = tried(attack, isolated, Limits(seconds=20, processes=32))
    assert ran.code == 1 and "BlockingIOError" in ran.stderr
    assert time.monotonic() - began < 19  # without waiting for the children

    endless = "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass"
    assert run_python(endless, tier=isolated, limits=Limits(seconds=1)).ended == "time"


def test_threads_count_as_processes(isolated: Tier):
    attack = f"""
import threading, time
for number in range(6): threading.Thread(target=time.sleep, args=(1,), daemon=True).start()
print({HARM!r})
"""
    assert "can't start new thread" in tried(attack, isolated, Limits(processes=4)).stderr


def test_the_disk_cannot_be_filled(isolated: Tier, open_folder: Path):
    limits = Limits(seconds=20, disk_nbytes=5_000_000, file_nbytes=3_000_000)
    attack = f"""
import os
folder = {str(open_folder)!r} if os.path.exists({str(open_folder)!r}) else "/tmp"
for number in range(3):
    with open(folder + f"/{{number}}", "wb") as file: file.write(bytes(2_000_000))
print({HARM!r})
"""
    assert "No space left on device" in tried(attack, isolated, limits).stderr
    large = run_python("open('/tmp/x', 'wb').write(bytes(4_000_000))", tier=isolated, limits=limits)
    assert "File too large" in large.stderr


@pytest.mark.parametrize("call", ["memfd_create('x')", "shmget"])
def test_memory_that_no_limit_counts_is_refused(isolated: Tier, call: str):
    shared = "ctypes.CDLL(None, use_errno=True).shmget(0, 4096, 0o1600) >= 0"
    check = shared if call == "shmget" else f"os.{call} >= 0"
    tried(f"import ctypes, os\nif {check}: print({HARM!r})", isolated)


def test_memory_of_one_process_is_limited(isolated: Tier):
    ran = run_python("held = bytearray(2_000_000_000)", tier=isolated)
    assert (ran.ended, ran.code) == ("memory", 1)


def test_memory_of_many_processes_is_limited(isolated: Tier):
    attack = """
import os, time
for _ in range(6):
    if not os.fork():
        held = [b"x" * 1_000_000 for _ in range(120)]
        held = [bytearray(one) for one in held]
        time.sleep(30)
time.sleep(30)
"""
    ran = run_python(attack, tier=isolated, limits=Limits(seconds=20, memory_nbytes=400_000_000))
    assert (ran.ended, ran.code) == ("memory", None) and ran.seconds < 15


def test_other_processes_cannot_be_killed(isolated: Tier):
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(30)"]) as victim:
        attack = f"import os\nos.kill({victim.pid}, 0)\nprint({HARM!r})"  # signal 0 asks whether one could
        assert "ProcessLookupError" in tried(attack, isolated).stderr
        assert "ProcessLookupError" in run_python(f"import os\nos.kill({os.getpid()}, 0)", tier=isolated).stderr
        everyone = f"import os\nos.kill(-1, 0)\nprint({HARM!r})"
        assert "ProcessLookupError" in tried(everyone, isolated).stderr  # it sees no other process
        parent = run_python("import os, signal\nos.kill(1, signal.SIGKILL)\nprint('alive')", tier=isolated)
        assert parent.succeeded and parent.stdout == "alive\n"
        assert victim.poll() is None
        victim.kill()


def test_nothing_is_written_outside(isolated: Tier, open_folder: Path):
    ran = tried(f"open({str(open_folder / 'written')!r}, 'w').write('x')\nprint({HARM!r})", isolated)
    assert "FileNotFoundError" in ran.stderr
    places = ["/x", "/dev/x", "/dev/shm/x", "/usr/lib/x", "/etc/x", "/program.py", "/etc/ld.so.cache"]
    for place in places:
        ran = run_python(f"open({place!r}, 'w').write('x')\nprint({HARM!r})", tier=isolated)
        assert HARM not in ran.stdout and ("Read-only file system" in ran.stderr or "Permission denied" in ran.stderr)


def test_huge_output_is_cut_while_it_is_read(isolated: Tier):
    for stream in ("stdout", "stderr"):
        program = f"import sys\nwhile True: sys.{stream}.write('x' * 100_000)"
        ran = run_python(program, tier=isolated, limits=Limits(output_nbytes=300_000))
        assert (ran.ended, ran.code) == ("output", None)
        assert getattr(ran, stream) == "x" * 300_000


def test_sleeping_for_ever_ends(isolated: Tier):
    ran = run_python("import time\nprint('here', flush=True)\ntime.sleep(1e6)", tier=isolated, limits=Limits(seconds=1))
    assert (ran.ended, ran.code, ran.stdout) == ("time", None, "here\n")
    assert 1 <= ran.seconds < 5


def test_processor_time_is_a_limit_of_its_own(isolated: Tier):
    """A second limit behind the wall clock."""
    program = "import resource\nresource.setrlimit(resource.RLIMIT_CPU, (1, 2))\nwhile True: pass"
    ran = run_python(program, tier=isolated, limits=QUICK)
    assert (ran.ended, ran.code) == ("time", 128 + signal.SIGXCPU)
    raised = "import resource\nresource.setrlimit(resource.RLIMIT_CPU, (999, 999))"
    assert "not allowed to raise maximum limit" in run_python(raised, tier=isolated).stderr


def test_signals_do_not_help(isolated: Tier):
    program = """
import os, signal
for number in range(1, 65):
    try: signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError): pass
os.setsid() if os.getpid() != os.getsid(0) else None
os.close(1); os.close(2)
while True: signal.pause()
"""
    assert run_python(program, tier=isolated, limits=Limits(seconds=1)).ended == "time"


def test_a_process_left_behind_dies(isolated: Tier):
    """It is recognized from outside by its unusual number of seconds."""
    mark = str(1_000_000 + os.getpid())
    attack = f"""
import os, subprocess, sys
subprocess.Popen([sys.executable, "-c", "import time; time.sleep({mark})"], start_new_session=True,
                 stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
print({HARM!r})
"""
    assert HARM in Unsandboxed().run(attack, QUICK).stdout
    left = _processes(mark)
    assert len(left) == 1  # bare it lives on
    os.kill(left[0], signal.SIGKILL)
    ran = run_python(attack, tier=isolated)
    assert HARM in ran.stdout  # it could be started, and
    deadline = time.monotonic() + 5
    while _processes(mark) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert _processes(mark) == []


def test_everything_dies_when_we_are_killed(isolated: Tier):
    mark = str(2_000_000 + os.getpid())
    ours = "import sys; from halfbyte.sandbox.tiers import run_python; from halfbyte.sandbox.process import Limits\n"
    ours += f"run_python('import time; print(1); time.sleep({mark})', limits=Limits(seconds=60))"
    with subprocess.Popen([sys.executable, "-c", ours + f"  # {mark}"]) as process:
        deadline = time.monotonic() + 60
        program = "/program.py"
        while not _sandboxed(process.pid, program) and time.monotonic() < deadline:
            time.sleep(0.05)
        inside = _sandboxed(process.pid, program)
        assert inside
        process.kill()
    deadline = time.monotonic() + 5
    while any(Path(f"/proc/{pid}").exists() for pid in inside) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not any(Path(f"/proc/{pid}").exists() for pid in inside)


@pytest.mark.parametrize(
    "name", ["ptrace", "process_vm_readv", "keyctl", "unshare", "io_uring_setup", "bpf", "inotify_init1"]
)
def test_calls_into_other_processes_and_the_kernel_are_refused(isolated: Tier, name: str):
    from halfbyte.sandbox import bubblewrap

    number = bubblewrap._REFUSED[name][bubblewrap._MACHINES[os.uname().machine][0]]
    program = f"import ctypes, os\nc = ctypes.CDLL(None, use_errno=True)\nc.syscall({number}, 0, 0, 0, 0, 0, 0)\n"
    program += "print(os.strerror(ctypes.get_errno()))"
    assert run_python(program, tier=isolated).stdout == "Operation not permitted\n"


def test_a_user_namespace_inside_is_refused(isolated: Tier):
    """clone() cannot be blocked, because every thread needs it: the sandbox's limit on namespaces blocks this one."""
    clone = 56 if os.uname().machine == "x86_64" else 220
    attack = f"""
import ctypes, os
pid = ctypes.CDLL(None, use_errno=True).syscall({clone}, 0x10000000 | 17, 0, 0, 0, 0)
if pid == 0: os._exit(0)
print({HARM!r} if pid > 0 else os.strerror(ctypes.get_errno()))
"""
    tried(attack, isolated)


def test_no_file_of_ours_stays_open_inside(isolated: Tier):
    program = """
import os
for number in range(1000):
    try: os.fstat(number)
    except OSError: continue
    print(number)
"""
    assert run_python(program, tier=isolated, stdin="x").stdout == "0\n1\n2\n"


def test_what_comes_in_cannot_be_changed(isolated: Tier):
    ran = run_python("import os\nos.write(0, b'x')", tier=isolated, stdin="abc")
    assert "PermissionError" in ran.stderr or "Bad file descriptor" in ran.stderr


def _processes(mark: str) -> list[int]:
    result = [int(path.parent.name) for path in Path("/proc").glob("[0-9]*/cmdline") if mark in _text(path)]
    return [pid for pid in result if pid != os.getpid()]


def _sandboxed(ours: int, program: str) -> list[int]:
    from halfbyte.sandbox.process import descendants

    result = descendants(ours)
    return result if any(_text(Path(f"/proc/{pid}/cmdline")).endswith(program + "\0") for pid in result) else []


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def test_threads_can_run_programs_at_once(isolated: Tier):
    answers: dict[int, str] = {}

    def one(number: int) -> None:
        answers[number] = run_python(f"print({number} * 2)", tier=isolated).stdout

    threads = [threading.Thread(target=one, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == {number: f"{number * 2}\n" for number in range(8)}
