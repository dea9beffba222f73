"""Two processes on one output folder: the second is rejected without side effects, and dead processes hold no lock."""

import json
import signal
import time

import pytest
from commands import WRITING, words
from release_runner import run as release
from test_release import BLOCK
from wreck import contents, files

# The first one waits in the middle of its work, holding the folder's lock, until it is released.
WAITS = """
import os, time
from pathlib import Path
real, reads = os.preadv, []
def preadv(file, *more):
    reads.append(file)
    if len(reads) == 5:
        Path({here!r}).touch()
        for _ in range(6000):  # a minute: a failed test leaves no process behind
            if Path({go!r}).exists():
                break
            time.sleep(0.01)
    return real(file, *more)
os.preadv = preadv
"""
SOON_S = 60
REFUSED, DEAD = "a second process on one output folder", "a lock of a killed process"


def soon(true):
    end = time.monotonic() + SOON_S
    while not true():
        assert time.monotonic() < end
        time.sleep(0.01)


def seen(out):
    """Return every file with its size and time, including temporary ones."""
    return {name: (path.stat().st_size, path.stat().st_mtime_ns) for name, path in files(out).items()}


@pytest.mark.parametrize("name", WRITING)
def test_the_second_is_refused_and_the_first_goes_on(forking, place, undisturbed, halfbyte, tally, tmp_path, name):
    out, here, go = (tmp_path / part for part in ("out", "here", "go"))
    command = words(name, place, out)
    waits = WAITS.format(here=str(here), go=str(go))
    first = forking.start(*command, before=waits)
    soon(here.exists)
    first.stop()  # one thread waits, and others may still write data that was already read
    before = seen(out)
    with tally.one(REFUSED):
        code, _, said = halfbyte(*command)
        assert (code, said.splitlines()[0]) == (2, "✗ another run is writing into this folder"), said
        assert len(said.splitlines()) == 3
        assert seen(out) == before
        assert first.kill().code == -signal.SIGKILL
    with tally.one(DEAD):
        go.touch()
        ended = forking.run(*command, before=waits)
        assert ended.code == 0, ended.words
        assert contents(out) == undisturbed(name)


def test_a_second_release_is_refused(forking, capsys, tally, tmp_path):
    source, out, say = (tmp_path / part for part in ("source", "out", "say"))
    for folder in (source, say):
        folder.mkdir()
    (source / "config.json").write_text("{}")
    (say / "slow-audit").touch()
    arguments = [str(source), str(out), json.dumps(BLOCK), "{}"]
    first = forking.start(release=arguments, HALFBYTE_FAKE=str(say))
    soon(lambda: "audit" in ((say / "ran").read_text() if (say / "ran").exists() else ""))
    first.stop()
    before = seen(out)
    with tally.one(REFUSED):
        assert release(*arguments) == 2
        assert capsys.readouterr().err.startswith("✗ another run is writing into this folder")
        assert seen(out) == before
        first.kill()
    (say / "slow-audit").unlink()
    with tally.one(DEAD):
        ended = forking.run(release=arguments, HALFBYTE_FAKE=str(say))
        assert ended.code == 0, ended.words
