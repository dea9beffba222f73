"""The checks of `make soak`: leaks are found, fluctuations are not, and a few real rounds stay flat."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOAK = ROOT / "benchmarks" / "soak"
sys.path.insert(0, str(SOAK))
from run import Soak  # noqa: E402 - beside the tests, not in the package
from verdict import FEWEST_FOR_MEMORY, FLAT, judge_count, judge_memory  # noqa: E402

MB = 1_000_000
ROUNDS = 50


@pytest.fixture
def soaked(tmp_path):
    """Run leaking rounds; return the reported problems."""

    def soak(what, rounds=ROUNDS):
        command = [sys.executable, Path(__file__).with_name("leaking_rounds.py"), what, str(rounds), tmp_path]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
        assert done.returncode == 0, done.stdout + done.stderr
        return set(json.loads(done.stdout.splitlines()[-1]))

    return soak


def test_what_keeps_nothing_is_flat(soaked):
    assert soaked("nothing") == set()


def test_a_megabyte_in_four_rounds_is_found(soaked):
    assert soaked("memory") == {"rss"}


@pytest.mark.parametrize("what", ["descriptors", "threads", "temp_files", "zombies"])
def test_one_in_a_round_is_found(soaked, what):
    assert soaked(what, rounds=10) == {what}


_ORPHAN = """
import os, subprocess, census
census.LEAVING_S = 0.2
census.under_keeper()
subprocess.run(["sh", "-c", "sleep 20 & echo $!"])
found = census.take_census({}, os.getppid())
print(found["children"], found["zombies"], found["orphans"])
"""


def test_a_process_whose_parent_has_ended_is_counted():
    command = [sys.executable, "-c", _ORPHAN]
    environment = {**os.environ, "PYTHONPATH": str(SOAK)}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        orphan, counted = (process.stdout.readline().strip() for _ in range(2))
        os.kill(int(orphan), signal.SIGKILL)
    assert counted == "0 0 1"


def test_one_in_a_hundred_rounds_is_found():
    counts = [5 + number // 100 for number in range(400)]
    assert judge_count("descriptors", counts[80:]).level == "bad"


def test_what_goes_up_and_comes_down_is_no_leak():
    dice = random.Random(0)
    breathing = [5 + (dice.random() < 0.3) * dice.randrange(9) for _ in range(100)]
    assert judge_count("shared_files", [*breathing, 14]).level == "good"


def test_memory_that_steps_once_and_trembles_is_no_leak_and_a_slope_under_the_tremble_is():
    dice = random.Random(1)
    steps = [800 * MB + (number > 20) * 30 * MB + dice.randrange(3 * MB) for number in range(200)]
    assert judge_memory(steps).level == "good"
    slope = [nbytes + number * MB // 5 for number, nbytes in enumerate(steps)]  # 20 MB per 100 rounds
    assert judge_memory(slope).level == "bad"


def test_few_rounds_say_nothing_about_memory():
    found = judge_memory([number * MB for number in range(FEWEST_FOR_MEMORY - 1)])
    assert (found.level, found.growth) == ("open", None)


def test_ctrl_c_ends_with_the_verdict_so_far(tmp_path, monkeypatch):
    monkeypatch.setattr("census.LEAVING_S", 0.1)  # other tests of this process may have left children

    def interrupted(number):
        if number == 7:
            raise KeyboardInterrupt
        return ["round"]

    soak = Soak(600, {"temp_files": tmp_path})
    soak.run(interrupted)
    result = soak.result()
    assert (soak.count, soak.ended, result["rounds"]) == (7, "Ctrl-C", 7)
    assert {finding["name"] for finding in result["findings"]} <= {"rss", *FLAT}


def test_some_real_rounds(tmp_path):
    """Five rounds run everything once, except the `halfbyte release` command, which takes half a minute."""
    command = [sys.executable, SOAK / "run.py", "--rounds", "5", "--typed-every", "1000", "-o", tmp_path / "soak.json"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    begin = time.monotonic()
    done = subprocess.run(list(map(str, command)), env=environment, capture_output=True, text=True, check=False)
    print(f"{time.monotonic() - begin:.0f} s\n{done.stdout}")
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((tmp_path / "soak.json").read_text())
    assert found["did"] == {"pipeline": 5, "provenance": 1, "fake_release": 1, "engine": 1}
    assert {finding["name"] for finding in found["findings"]} == {"rss", *FLAT}
    assert "✓ descriptors: flat at" in done.stdout
    assert "! memory: 4 rounds after the warm-up" in done.stdout
