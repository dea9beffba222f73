"""SIGKILL at exact operations: before, during and after the n-th operation that changes the output.

Operations are counted in an uninterrupted run and drawn from all of them by a seed, so that a kill falls between two
system calls or leaves half of a write on the disk.
"""

import random
import shutil

import pytest
from commands import WRITING, words
from injected import KILL_AFTER, KILL_BEFORE, KILL_HALFWAY, Fault
from wreck import contents, files, refuse_torn

KILLS = 50
CHAINED = 0.4  # share of resumed commands that are killed too
SIGKILL = -9


def points(seed, operations):
    """Draw injection points endlessly: an operation and a position in it."""
    dice = random.Random(seed)
    while True:
        yield dice.choice((KILL_BEFORE, KILL_HALFWAY, KILL_AFTER)), dice.randint(1, operations), dice.random()


def look_at(out, halfbyte):
    """Check that commands report the state of an interrupted output without a traceback."""
    for command in ("status", "inspect"):
        code, _, said = halfbyte(command, out)
        assert code in (0, 2), said
        assert "Traceback" not in said


@pytest.mark.parametrize("name", WRITING)
def test_a_kill_at_any_operation_loses_nothing(forking, place, undisturbed, halfbyte, tally, tmp_path, name):
    whole = undisturbed(name)
    operations = forking.run(*words(name, place, tmp_path / "counted"), fault=Fault(tmp_path / "counted")).seen
    fault, out, pending, torn = f"SIGKILL in {name}", tmp_path / "out", 0, 0
    command = words(name, place, out)
    for action, at, chance in points(name, operations):
        ended = forking.run(*command, fault=Fault(out, action, at))
        if ended.done:
            assert ended.code == SIGKILL, ended.words
            tally.injected(fault)
            pending += 1
            torn += any(name.endswith(".part") for name in files(out))
            refuse_torn(out, whole)
            look_at(out, halfbyte)
            if chance < CHAINED and tally.count(fault)[0] < KILLS:
                continue  # and kill the resumed command
            ended = forking.run(*command)
        assert ended.code == 0, ended.words
        assert contents(out) == whole
        tally.survived(fault, pending)
        pending = 0
        shutil.rmtree(out)
        if tally.count(fault)[0] >= KILLS:
            break
    assert tally.count(fault) == (KILLS, KILLS)
    assert torn > KILLS // 10, "too few kills left something half-written"
