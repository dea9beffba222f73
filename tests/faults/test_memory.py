"""Memory that does not suffice: a sentence and exit code 3 wherever Python is told so, and the same command goes on."""

import shutil

import pytest
from commands import words
from wreck import contents, files, refuse_torn

LIMIT = """
import resource
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + {more}, used + {more}))
"""
# At one job in the middle of a run, in the thread that does it.
WORKER = """
import halfbyte.run as run
apply, jobs = run.apply, []
def hungry(*given):
    jobs.append(given)
    if len(jobs) >= 4:
        raise MemoryError
    return apply(*given)
run.apply = hungry
"""
MEGABYTES = (1, 6, 16, 32, 64)
FAULT, IN_WORKER = "too little address space (RLIMIT_AS)", "MemoryError in a worker thread"

ENDS = (-6, -11, 127)  # how libraries, and libc itself, end a process to which they can give no memory: no word of ours


def sentence(ended):
    # Where a thread cannot even be started, Python says so in words of its own before.
    assert "✗ there is not enough memory\n  where this machine\n" in ended.words, ended.words
    assert "Traceback" not in ended.words


@pytest.mark.parametrize("name", ["quantize", "calibrated quantize"])
def test_too_little_memory_loses_nothing(forking, place, undisturbed, tally, tmp_path, name):
    whole, out = undisturbed(name), tmp_path / "out"
    command = words(name, place, out)
    for before, fault in [(WORKER, IN_WORKER), *((LIMIT.format(more=more << 20), FAULT) for more in MEGABYTES)]:
        ended = forking.run(*command, before=before)
        if ended.code == 0:
            shutil.rmtree(out)
            continue  # it sufficed
        tally.injected(fault)
        if ended.code not in ENDS:
            assert ended.code == 3, ended.words
            sentence(ended)
            assert not out.exists() or not [path for path in files(out) if path.endswith(".part")]
        if out.exists():
            refuse_torn(out, whole)
        ended = forking.run(*command)
        assert ended.code == 0, ended.words
        assert contents(out) == whole
        tally.survived(fault)
        shutil.rmtree(out)
    assert tally.count(IN_WORKER) == (1, 1)
    assert tally.count(FAULT)[0] >= 2
