"""How runs end when they reach an address-space limit (`ulimit -v`), and how much address space they need.

    python benchmarks/starved_runs.py --runs 150 --machine 2core

`quantize` on a small model, with its own check of the limit disabled, with 1 to 83 MB left. A run that has not ended
after 25 s counts as hanging. Before that, the commands run without a limit: `halfbyte/machine/resources.py` must allow
for the memory that they map after the check. The result is in benchmarks/results.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from datetime import datetime, timezone
from pathlib import Path

sys.path.extend(str(Path(__file__).parents[1] / folder) for folder in ("tests", "tests/flow", "tests/faults"))

from calibratable import small, texts
from commands import WRITING, words
from injected import Ended, Forking, Job, built
from test_memory import LIMIT

RESULTS = Path(__file__).parent / "results"
MEGABYTES = (1, 6, 16, 32, 64)  # each of them is taken by up to 30 % more or less
FOR_EVER_S = 25
UNWATCHED = "import halfbyte.engine.pipeline\nhalfbyte.engine.pipeline.refuse_few_addresses = lambda *_, **__: None\n"
# In a fresh process, from where the limit is looked at: PyTorch, and what compiles, are still to be loaded.
MAPPED = """
import atexit, re, sys
import halfbyte.engine.calibrate, halfbyte.engine.pipeline
from halfbyte.cli import main as cli
def mapped(key):
    return int(re.search(key + r":\\s+(\\d+)", open("/proc/self/status").read())[1])
begin = mapped("VmSize")
atexit.register(lambda: print("MAPPED", mapped("VmPeak") - begin))
sys.exit(cli.run(sys.argv[1:]))
"""


def how(ended: Ended, waited: bool) -> str:
    """Return in words how a run ended."""
    if waited:
        return "waited for ever"
    if ended.code == 0:
        return "came to its end"
    if ended.code == 3 and "not enough memory" in ended.words and "Traceback" not in ended.words:
        return "our sentence"
    return f"exit code {ended.code}"


def starved(forking: Forking, place: Path, out: Path, runs: int) -> Counter[str]:
    """Run so many; return how many ended in which way."""
    dice, found = random.Random(1), Counter[str]()
    for _ in range(runs):
        left = int(dice.choice(MEGABYTES) * dice.uniform(0.7, 1.3) * 2**20)
        job = forking.start(*words("quantize", place, out), before=UNWATCHED + LIMIT.format(more=left))
        found[how(*_ended(job))] += 1
        shutil.rmtree(out, ignore_errors=True)
    return found


def _ended(job: Job) -> tuple[Ended, bool]:
    """Wait for a run with a timeout; return its exit, and whether it had to be killed."""
    waited = threading.Event()

    def give_up() -> None:
        waited.set()
        os.kill(job.pid, signal.SIGKILL)

    timer = threading.Timer(FOR_EVER_S, give_up)
    timer.start()
    ended = job.wait()
    timer.cancel()
    return ended, waited.is_set()


def mapped_megabytes(name: str, place: Path, out: Path) -> int:
    """Return the memory that a command maps from its start to its end."""
    command = [sys.executable, "-c", MAPPED, *map(str, words(name, place, out))]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return int(re.search(r"MAPPED (\d+)", done.stdout)[1]) // 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=150)
    parser.add_argument("--machine", required=True)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        small(place / "source", layers=2)
        texts(place / "texts.jsonl")
        (place / "forking").mkdir()
        found = {"date": datetime.now(timezone.utc).isoformat(timespec="seconds"), "runs": asked.runs}
        found["mapped_mb"] = {name: mapped_megabytes(name, place, place / name) for name in WRITING}
        forking = Forking(place / "forking", built(place))
        forking.run(*words("quantize", place, place / "first"))
        found["ended"] = dict(starved(forking, place, place / "out", asked.runs).most_common())
        forking.close()
    month = found["date"][:7].replace("-", "")
    path = RESULTS / f"starved_runs_{asked.machine}_{month}.json"
    path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(path.read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
