"""Clocks that jump by hours and years, forward and backward: no hang, no crash, same bytes.

The wall clock is libc's; only a release reads it. The monotonic clock never goes back on a real machine; here it does
for all Python callers.
"""

import json

import pytest
from commands import WRITING, words
from injected import JUMP, Fault
from test_release import BLOCK
from wreck import contents

SECONDS = """
import itertools, time
def jumping(real, calls=itertools.count(), hours=(0, 2, -3, 900, -700, 50_000)):
    return lambda: real() + 3600 * hours[next(calls) // 3 % 6]
for name in ("monotonic", "perf_counter"):
    setattr(time, name, jumping(getattr(time, name)))
"""
WALL, COUNTED = "clock on the wall that jumps", "clock of seconds that jumps"


@pytest.mark.parametrize("name", WRITING)
def test_a_clock_that_jumps_decides_no_byte(forking, place, undisturbed, halfbyte, tally, tmp_path, name):
    out = tmp_path / "out"
    ended = forking.run(*words(name, place, out)[1:], before=SECONDS)  # with its bar and its time left
    with tally.one(COUNTED):
        assert ended.code == 0, ended.words
        assert contents(out) == undisturbed(name)
        if name != "calibrate":
            assert halfbyte("status", out)[0] == 0


def test_a_release_under_a_clock_that_jumps(forking, tally, tmp_path):
    for folder in ("source", "say"):
        (tmp_path / folder).mkdir()
    (tmp_path / "source/config.json").write_text("{}")
    job = [str(tmp_path / "source"), str(tmp_path / "out"), json.dumps(BLOCK), "{}"]
    how = {"release": job, "HALFBYTE_FAKE": str(tmp_path / "say")}
    ended = forking.run(fault=Fault(tmp_path, JUMP), before=SECONDS, **how)
    assert ended.done, "nobody looked at the clock"
    with tally.one(WALL):
        assert ended.code == 0, ended.words
    ended = forking.run(**how)
    assert (ended.code, "quantize" in (tmp_path / "say/ran").read_text().split()) == (0, True), ended.words
    assert (tmp_path / "say/ran").read_text().count("audit") == 1  # all was kept
