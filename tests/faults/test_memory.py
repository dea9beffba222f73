"""Insufficient memory: an error with exit code 3, no lost work, and the same command resumes."""

import shutil

import pytest
from commands import WRITING, words
from wreck import contents, files, refuse_torn

from halfbyte.machine.resources import run_threads
from halfbyte.ui.units import size

LIMIT = """
import resource
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + {more}, used + {more}))
"""
# At one job in the middle of a run, in the thread that does it.
WORKER = """
import halfbyte.engine.runner as run
apply, jobs = run.apply, []
def hungry(*given):
    jobs.append(given)
    if len(jobs) >= 4:
        raise MemoryError
    return apply(*given)
run.apply = hungry
"""
MEGABYTES = (1, 6, 16, 32, 64, 256, 900)
ENOUGH = (1 << 31) + run_threads() * (72 << 20)  # slightly more than the estimate for such a small run
FAULT, IN_WORKER = "too little address space (RLIMIT_AS)", "MemoryError in a worker thread"


@pytest.mark.parametrize("name", WRITING)
def test_too_few_addresses_are_said_before_anything_is_written(forking, place, undisturbed, tally, tmp_path, name):
    whole, out = undisturbed(name), tmp_path / "out"  # by now all that it imports is imported
    command = words(name, place, out)
    for more in MEGABYTES:
        with tally.one(FAULT):
            ended = forking.run(*command, before=LIMIT.format(more=more << 20))
            assert ended.code == 3, ended.words
            what, where, fix = ended.words.splitlines()
            assert what.startswith("✗ this run may need ") and what.endswith(f"but the limit leaves {size(more << 20)}")
            assert (where, "--threads" in fix) == ("  where ulimit -v", True)
            assert not out.exists()
    for _ in range(3):
        ended = forking.run(*command, before=LIMIT.format(more=ENOUGH))
        assert ended.code == 0, ended.words
        assert contents(out) == whole
        shutil.rmtree(out)


def test_what_jobs_hold_counts(forking, place, tally, tmp_path):
    command = [*words("quantize", place, tmp_path / "out"), "--threads", "2"]
    with tally.one(
        FAULT
    ):  # enough for the libraries and two threads, which is 1.2 GB; shards that wait may have 0.3 GB
        ended = forking.run(*command, before=LIMIT.format(more=1300 << 20))
        assert (ended.code, ended.words.startswith("✗ this run may need 1.5 GB")) == (3, True), ended.words
        assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["quantize", "calibrated quantize"])
def test_no_memory_for_a_job_loses_nothing(forking, place, undisturbed, tally, tmp_path, name):
    whole, out = undisturbed(name), tmp_path / "out"
    command = words(name, place, out)
    with tally.one(IN_WORKER):
        ended = forking.run(*command, before=WORKER)
        assert ended.code == 3, ended.words
        assert ended.words.startswith("✗ out of memory\n  where this machine\n"), ended.words
        assert not [path for path in files(out) if path.endswith(".part")]
        refuse_torn(out, whole)
        ended = forking.run(*command)
        assert ended.code == 0, ended.words
        assert contents(out) == whole
