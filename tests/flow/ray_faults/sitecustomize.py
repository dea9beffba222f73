"""Faults for Ray workers, which import this file at startup. Files in a folder control them.

slow      extra seconds for every job
kill-*    each file kills one process with SIGKILL
memory-*  each file raises one MemoryError
jobs      a line for each started job: process and job name
"""

import importlib.abc
import importlib.machinery
import os
import signal
import sys
import threading
import time
from pathlib import Path

FOLDER = os.environ.get("HALFBYTE_TEST_FAULTS")
ONE_BY_ONE = threading.Lock()  # two threads of a process must not take two kills: it dies once


def taken(kind):
    """Return whether a fault of this kind is left, and claim it."""
    for fault in sorted(Path(FOLDER).glob(f"{kind}-*")):
        try:
            fault.unlink()
        except FileNotFoundError:
            continue
        return True
    return False


def at_fault(name):
    with (Path(FOLDER) / "jobs").open("a") as file:
        file.write(f"{os.getpid()} {name}\n")
    slow = Path(FOLDER) / "slow"
    if slow.exists():
        time.sleep(float(slow.read_text() or 0))
    with ONE_BY_ONE:
        if taken("kill"):
            os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(60)  # until it has died
    if taken("memory"):
        raise MemoryError("nothing left")


class Faulty(importlib.abc.MetaPathFinder):
    """Patch modules on first import, without importing anything itself."""

    def find_spec(self, name, path, target=None):
        if name not in ("halfbyte.engine.runner", "halfbyte.calibrate.stream"):
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        run = spec.loader.exec_module

        def exec_module(module):
            run(module)
            if name == "halfbyte.engine.runner":
                apply = module.apply
                module.apply = lambda job, *given: (at_fault(job.name), apply(job, *given))[1]
            else:
                through = module.run_layer
                module.run_layer = lambda *given, **more: (at_fault("a layer"), through(*given, **more))[1]

        spec.loader.exec_module = exec_module
        return spec


if FOLDER:
    sys.meta_path.insert(0, Faulty())
