"""Rounds that leak, in a separate process, because the test process contains leftovers of other tests.

    python leaking_rounds.py WHAT ROUNDS FOLDER

prints the problems that `make soak` would report, as JSON.
"""

import json
import os
import random
import subprocess
import sys
import threading
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks" / "soak"))
import census
from run import Soak
from verdict import judge

MB = 1_000_000


class Leaks:
    """A round that leaks one object of a kind; `end` releases all of them."""

    def __init__(self, folder):
        self.folder, self.held, self.stop = folder, [], threading.Event()

    def nothing(self, number):
        return ["nothing"]

    def memory(self, number):
        self.held.append(random.randbytes(MB // 4))
        return ["memory"]

    def descriptors(self, number):
        self.held.append(os.open(os.devnull, os.O_RDONLY))
        return ["descriptors"]

    def threads(self, number):
        self.held.append(threading.Thread(target=self.stop.wait))
        self.held[-1].start()
        return ["threads"]

    def temp_files(self, number):
        (self.folder / f"{number}.part").touch()
        return ["temp_files"]

    def zombies(self, number):
        self.held.append(subprocess.Popen(["true"]))
        return ["zombies"]

    def end(self):
        self.stop.set()
        for held in self.held:
            if isinstance(held, int):
                os.close(held)
            elif isinstance(held, threading.Thread):
                held.join()
            elif isinstance(held, subprocess.Popen):
                held.wait()


def main(what, rounds, folder):
    census.LEAVING_S = 0.1  # the zombies are never reaped, and the census would wait
    leaks, found = Leaks(Path(folder)), Soak(600, {"temp_files": Path(folder)}, rounds=int(rounds))
    found.run(getattr(leaks, what))
    assert found.did == {what: int(rounds)}  # the fault was there
    print(json.dumps(sorted(finding.name for finding in judge(found.series) if finding.level == "bad")))
    leaks.end()


if __name__ == "__main__":
    main(*sys.argv[1:])
