"""A fork server for tests: a process with all imports done, whose children run commands without the import time.

`python forking.py` reads one job per line, and answers "started PROCESS" and "ended CODE". A child loads its fault
plan, runs the given setup, and then the command.
"""

import ctypes
import importlib
import json
import os
import sys
from pathlib import Path


def command(job) -> int:
    """Run the command line, or a release with instant stages."""
    if job["plan"]:
        ctypes.CDLL(None).faults_arm(job["plan"].encode())
        os.environ["FAULTS"] = job["plan"]  # inherited by its children
    exec(job["before"], {})
    if job["release"] is not None:
        import release_runner

        return release_runner.run(*job["release"])
    from halfbyte.cli import main as cli

    return cli.run(job["argv"])


def child(job) -> None:
    words = os.open(job["words"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(words, 1)
    os.dup2(words, 2)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.environ.update(job["environment"])
    code = 70
    try:
        code = command(job)
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 1
    except BaseException as error:  # exceptions that the command line does not catch
        print("Traceback", repr(error), file=sys.stderr)
    sys.stdout.flush()
    sys.stderr.flush()
    if job["learn"]:
        Path(job["learn"]).write_text("\n".join(sys.modules))
    os._exit(code)  # Python takes seconds to forget PyTorch


def import_all(names) -> None:
    """Import everything that a command imports, so that later ones start faster."""
    for name in names:
        if name not in sys.modules and name.partition(".")[0] in ("halfbyte", "pydantic", "rich", "click", "jinja2"):
            importlib.import_module(name)


def main() -> None:
    for line in sys.stdin:
        job = json.loads(line)
        pid = os.fork()
        if not pid:
            child(job)
        print("started", pid, flush=True)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if job["learn"]:
            import_all(Path(job["learn"]).read_text().splitlines())
        print("ended", code, flush=True)


if __name__ == "__main__":
    main()
