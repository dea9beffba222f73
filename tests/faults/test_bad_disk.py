"""Disk errors: reads, writes, syncs, renames and other calls fail with EIO, once or permanently, or are short.

The faults are injected in libc, so they hit every caller. Injection points are drawn by a seed from all calls of a run.
"""

import random
import shutil

import pytest
from commands import WRITING, words
from injected import CREATE, FAIL_ON, FAIL_ONCE, READ, RENAME, RESERVE, SHORT, SYNC, WRITE, Fault
from wreck import contents, files, refuse_torn

KINDS = {
    "EIO on write": (WRITE, "out"),
    "EIO on fsync": (SYNC, "out"),
    "EIO on rename": (RENAME, "out"),
    "EIO on create or reserve": (CREATE | RESERVE, "out"),
    "EIO on read of the source": (READ, "source"),
    "EIO on read of the output": (READ, "out"),
}
FEW = 8  # operations of a kind: then each of them fails once
MACHINE, USAGE = 3, 2


def sentence(ended, out, place):
    """Check for one error with the failed file and a fix: no traceback, no advice to remove files."""
    what, where, fix = ended.words.splitlines()
    assert (what.startswith("✗ ") and "Input/output error" in what + fix) or "cannot be read back" in what, ended.words
    assert where.startswith(f"  where {out}") or where.startswith(f"  where {place / 'source'}"), ended.words
    named = where.removeprefix("  where ")
    failed = ended.what.removesuffix(".part")
    assert ended.done > 1 or failed.startswith(named.removesuffix(".part")), f"{failed} failed, and {named} is named"
    assert fix.startswith("  fix   ") and "remove" not in fix, ended.words


@pytest.mark.parametrize("fault", KINDS)
@pytest.mark.parametrize("name", WRITING)
def test_an_error_of_the_disk(forking, place, undisturbed, tally, tmp_path, name, fault):
    whole, dice, out = undisturbed(name), random.Random(name + fault), tmp_path / "out"
    operations, side = KINDS[fault]
    folder = out if side == "out" else place / "source"
    counted = forking.run(*words(name, place, out), fault=Fault(folder, operations=operations)).seen
    few = counted <= FEW
    for at in range(1, counted + 1) if few else [dice.randint(1, counted)]:
        shutil.rmtree(out)
        action = dice.choice((FAIL_ONCE, FAIL_ON))
        ended = forking.run(*words(name, place, out), fault=Fault(folder, action, at, operations))
        assert ended.done, "nothing failed"
        tally.injected(fault)
        assert ended.code in (MACHINE, USAGE), ended.words
        sentence(ended, out, place)
        refuse_torn(out, whole)
        assert not [path for path in files(out) if path.endswith(".part")]
        ended = forking.run(*words(name, place, out))
        assert ended.code == 0, ended.words
        assert contents(out) == whole
        tally.survived(fault)


@pytest.mark.parametrize("name", WRITING)
def test_a_disk_that_moves_half_of_what_it_is_asked_for(forking, place, undisturbed, tally, tmp_path, name):
    """POSIX allows this, and network disks do it: every call moves half of the remaining bytes."""
    for fault, operations, side in (("short writes", WRITE, "out"), ("short reads", READ, "source")):
        out = tmp_path / fault
        folder = out if side == "out" else place / "source"
        ended = forking.run(*words(name, place, out), fault=Fault(folder, SHORT, 1, operations))
        assert ended.done > 20
        for _ in range(ended.done):
            tally.injected(fault)
        assert ended.code == 0, ended.words
        assert contents(out) == undisturbed(name)
        tally.survived(fault, ended.done)
