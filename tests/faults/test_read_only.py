"""Read-only folders, as mounts in the command's own namespace, because root ignores permissions."""

import shutil

import pytest
from commands import WRITING, words
from injected import KILL_BEFORE, Fault
from wreck import contents

# In the command's own process, which has one thread by now: a namespace in which a folder is read-only.
READ_ONLY = """
import ctypes, os
from pathlib import Path
libc = ctypes.CDLL(None, use_errno=True)
user, group = os.getuid(), os.getgid()
def done(code):
    if code:
        print("NO NAMESPACE", os.strerror(ctypes.get_errno()), flush=True)
        os._exit(99)
done(libc.unshare(0x10000000 | 0x20000))
Path("/proc/self/setgroups").write_text("deny")
Path("/proc/self/uid_map").write_text(f"0 {{user}} 1")
Path("/proc/self/gid_map").write_text(f"0 {{group}} 1")
folder = {folder!r}.encode()
done(libc.mount(folder, folder, None, 4096, None))
done(libc.mount(None, folder, None, 4096 | 32 | 1, None))
"""
OUT, SOURCE = "a read-only output folder", "a read-only source"


def run(forking, command, folder):
    ended = forking.run(*command, before=READ_ONLY.format(folder=str(folder)))
    if ended.code == 99:
        pytest.skip(f"this machine gives nobody a namespace: {ended.words}")
    return ended


@pytest.mark.parametrize("name", WRITING)
def test_an_output_that_is_read_only_is_said_and_a_source_may_be(forking, place, undisturbed, tally, tmp_path, name):
    whole, out = undisturbed(name), tmp_path / "out"
    command = words(name, place, out)
    for begun in (False, True):
        out.mkdir()
        if begun:  # a run that was killed in its middle, on a disk that is read-only ever since
            assert forking.run(*command, fault=Fault(out, KILL_BEFORE, 20)).code == -9
        before = contents(out)
        ended = run(forking, command, out)
        with tally.one(OUT):
            assert ended.code == 3, ended.words
            what, where, _ = ended.words.splitlines()
            assert what in ("✗ no permission to write here", "✗ cannot continue: Read-only file system")
            assert where.startswith(f"  where {out}")
            assert contents(out) == before
            ended = forking.run(*command)
            assert ended.code == 0, ended.words
            assert contents(out) == whole
        shutil.rmtree(out)
    ended = run(forking, command, place / "source")
    with tally.one(SOURCE):
        assert ended.code == 0, ended.words
        assert contents(out) == whole
