"""A source shard that changes, shrinks, grows, is replaced or is deleted during a run."""

import json
import random
import shutil

import pytest
from commands import WRITING, words
from wreck import contents, files, refuse_torn

# In the command's own process: at the n-th read of a shard that is left to be read, its file is changed on the disk.
MEDDLE = """
import json, os
from pathlib import Path
how, at, folder, note = json.loads({settings!r})
real, seen = os.preadv, []
def preadv(file, *more):
    path = Path(os.readlink(f"/proc/self/fd/{{file}}"))
    if path.parent == Path(folder) and path.suffix == ".safetensors":
        seen.append(path)
        if len(seen) == at:
            Path(note).write_text(path.name)
            change(path)
    return real(file, *more)
def change(path):
    nbytes = path.stat().st_size
    if how == "shrinks":
        os.truncate(path, nbytes // 2)
    elif how == "empties":
        os.truncate(path, 0)
    elif how == "grows":
        with path.open("ab") as file:
            file.write(bytes(4096))
    elif how == "changes":
        with path.open("r+b") as file:
            file.seek(nbytes // 2)
            file.write(bytes(nbytes - nbytes // 2))
    elif how == "is replaced":
        other = path.with_name("other")
        other.write_bytes(path.read_bytes()[:-64] + bytes(64))
        other.replace(path)
    else:
        path.unlink()
os.preadv = preadv
"""
HOW = ("shrinks", "empties", "grows", "changes", "is replaced", "goes away")
READS = 60  # of shards, that every command makes; later ones are not sure to come


@pytest.mark.parametrize("name", WRITING)
def test_a_shard_that_is_not_left_alone(forking, place, undisturbed, tally, tmp_path, name):
    whole, dice, note = undisturbed(name), random.Random(name), tmp_path / "note"
    for how in HOW[
        WRITING.index(name) % 2 :: 2
    ]:  # each of them meets two commands that calibrate, or two that need not
        fault, source, out = f"a shard that {how}", tmp_path / "source", tmp_path / "out"
        shutil.copytree(place / "source", source)  # with the times of its files
        settings = json.dumps([how, dice.randint(1, READS), str(source), str(note)])
        ended = forking.run(*words(name, place, out, source), before=MEDDLE.format(settings=settings))
        shard = note.read_text()
        tally.injected(fault)
        assert ended.code == 2, ended.words
        assert shard in ended.words and "Traceback" not in ended.words
        assert len(ended.words.splitlines()) == 3
        if out.exists():
            refuse_torn(out, whole)
            assert not [path for path in files(out) if path.endswith(".part")]
        shutil.rmtree(source)
        shutil.copytree(place / "source", source)
        ended = forking.run(*words(name, place, out, source))
        assert ended.code == 0, ended.words
        assert contents(out) == whole
        tally.survived(fault)
        note.unlink()
        shutil.rmtree(source)
        shutil.rmtree(out)
