"""Disks that are full, over quota, read-only or owned by another user: finished shards are kept, partial files are
removed, and the same command resumes once there is room.

If the kernel allows it, the disk is a small tmpfs in its own mount namespace, filled by a ballast file at the worst
moment.
"""

import errno
import hashlib
import json
import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from calibratable import arguments, small, texts
from pico import write_pico
from tensor_hashes import tensor_hashes

from halfbyte.engine.pipeline import plan, quantize
from halfbyte.recipe.load import load_recipe

RECIPE = "kimi-k2.6-mxfp4-wafer"
DISK = "272m"  # the free space that a run requires, plus four megabytes

# Runs inside the namespace: the command on a disk that fills up at a moment, then, with room again, the same command.
DRIVER = """
import hashlib, json, subprocess, sys
from pathlib import Path
sys.path.append(sys.argv.pop(1))
from tensor_hashes import tensor_hashes
disk, moment, command = Path(sys.argv[1]), sys.argv[2], sys.argv[3:]
out, ballast = disk / "out", disk / "ballast"
FILL = '''
import os, sys
from pathlib import Path
import halfbyte.engine.pipeline as pipeline
import halfbyte.engine.runner as run
disk, moment = Path(sys.argv.pop()), sys.argv.pop()
def fill():
    with open(disk / "ballast", "ab", buffering=0) as file:  # a buffer would fail once more when it is closed
        for nbytes in (1 << 20, 1 << 12):
            try:
                while True:
                    file.write(bytes(nbytes))
            except OSError:
                pass
def before(module, name, ready):
    function = getattr(module, name)
    def call(*arguments, **options):
        if ready():
            fill()
        return function(*arguments, **options)
    setattr(module, name, call)
if moment == "shards":
    before(run, "apply", lambda: len(list(disk.glob("out/*.safetensors"))) >= 2)
elif moment == "hidden":
    from halfbyte.calibrate.store import Store
    before(Store, "save_hidden", lambda: any(disk.rglob("layer-00001.safetensors")))
else:
    before(pipeline, {"begin": "_initialize", "rest": "finalize"}[moment], lambda: True)
from halfbyte.cli.main import main
main(sys.argv[1:])
'''
def start(*how):
    return subprocess.run([sys.executable, *how], capture_output=True, text=True)
def left():
    return sorted(str(path.relative_to(out)) for path in out.rglob("*") if path.is_file())
full = start("-c", FILL, *command, moment, str(disk))
facts = {"code": full.returncode, "words": full.stderr, "left": left()}
ballast.unlink()
again = start("-m", "halfbyte", *command)
facts |= {"again": again.returncode, "said": again.stderr, "whole": left()}
facts["hashes"] = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in out.glob("*.safetensors")}
facts["tensors"] = {path.name: tensor_hashes(path) for path in out.glob("*.safetensors")}
journal = out / "halfbyte/journal.jsonl"
facts["journal"] = journal.read_text() if journal.exists() else ""
print(json.dumps(facts))
"""


def on_a_disk_of_its_own(folder, options, *command):
    """Run a command with a new tmpfs in a folder, in its own mount namespace."""
    mount = f'mount -t tmpfs -o "{options}" none "{folder}" && exec "$@"'
    namespace = ["unshare", "--map-root-user", "--mount", "sh", "-c", mount, "sh"]
    return subprocess.run([*namespace, *map(str, command)], capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def namespaces(tmp_path_factory):
    """Skip if users may not mount."""
    try:
        allowed = on_a_disk_of_its_own(tmp_path_factory.mktemp("disk"), "size=1m", "true").returncode == 0
    except FileNotFoundError:
        allowed = False
    if not allowed:
        pytest.skip("this machine lets nobody mount a tmpfs in a namespace")


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return write_pico(tmp_path_factory.mktemp("source"), "int4-k2.6")


@pytest.fixture(scope="module")
def whole(source, tmp_path_factory):
    """The hashes and files of an uninterrupted run."""
    out = tmp_path_factory.mktemp("whole") / "out"
    quantize(source, out, load_recipe(RECIPE))
    return hashes(out), files(out)


def hashes(out):
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in out.glob("*.safetensors")}


def files(out):
    return sorted(str(path.relative_to(out)) for path in out.rglob("*") if path.is_file())


def filled_up(tmp_path, moment, *command):
    """Run a command on a disk that fills up, then again; return the results, and the fix of the first error."""
    disk = tmp_path / "disk"
    disk.mkdir()
    words = (Path(__file__).parent, disk, moment, "-q", *command)
    done = on_a_disk_of_its_own(disk, f"size={DISK}", sys.executable, "-c", DRIVER, *words)
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    assert facts["code"] == 3, facts["words"]
    what, where, fix = facts["words"].splitlines()
    assert what == "✗ the disk is full"
    assert str(disk / "out") in where
    return facts, fix


@pytest.mark.usefixtures("namespaces")
@pytest.mark.parametrize(("moment", "finished"), [("begin", {0}), ("shards", {2, 3, 4}), ("rest", {6})])
def test_a_disk_that_fills_up(source, tmp_path, whole, moment, finished):
    """Started shards have their space reserved, and are finished."""
    facts, fix = filled_up(tmp_path, moment, "quantize", source, tmp_path / "disk/out", "-r", RECIPE, "--threads", "1")
    assert fix == "  fix   free some space and run the same command again: finished shards are kept"
    assert not [name for name in facts["left"] if name.endswith(".part")]
    assert sum(name.endswith(".safetensors") for name in facts["left"]) in finished
    assert "config.json" not in facts["left"]
    assert facts["again"] == 0, facts["said"]
    assert (facts["hashes"], facts["whole"]) == whole
    lines = [json.loads(line)["shard"] for line in facts["journal"].splitlines() if line]
    assert sorted(lines) == sorted(whole[0])  # finished shards were not written again


@pytest.mark.usefixtures("namespaces")
@pytest.mark.parametrize(("verb", "kept"), [("quantize", "finished shards"), ("calibrate", "measured layers")])
def test_a_disk_that_fills_up_while_hidden_states_are_kept(tmp_path, verb, kept):
    """Hidden states are the largest file that a calibration writes."""
    source, data = small(tmp_path / "source"), texts(tmp_path / "texts.jsonl")
    for name in ("disk/out", "whole"):
        words = [verb, source, *(["-o"] if verb == "calibrate" else []), tmp_path / name, *arguments(data)]
        if name == "whole":
            assert subprocess.run([sys.executable, "-m", "halfbyte", *map(str, words)], check=False).returncode == 0
        else:
            facts, fix = filled_up(tmp_path, "hidden", *words)
    assert fix == f"  fix   free some space and run the same command again: {kept} are kept"
    assert not [name for name in facts["left"] if name.endswith(".part")]
    assert [name for name in facts["left"] if "hidden" in name]
    assert facts["again"] == 0, facts["said"]
    # By tensor first: should they ever differ, the names say where to look.
    assert facts["tensors"] == {path.name: tensor_hashes(path) for path in (tmp_path / "whole").glob("*.safetensors")}
    assert (facts["hashes"], facts["whole"]) == (hashes(tmp_path / "whole"), files(tmp_path / "whole"))


@pytest.mark.parametrize("verb", ["quantize", "calibrate"])
def test_a_disk_without_room_for_hidden_states(tmp_path, halfbyte, monkeypatch, verb):
    """Two of them, because the next one is complete before the last is removed: 6 rows of 24 tokens, 64 values of two
    bytes.
    """
    source, data, out = small(tmp_path / "source"), texts(tmp_path / "texts.jsonl"), tmp_path / "out"
    words = [verb, source, *(["-o"] if verb == "calibrate" else []), out, *arguments(data)]
    spare, usage = {"quantize": 1 << 28, "calibrate": 1 << 26}[verb], shutil.disk_usage(tmp_path)
    if verb == "quantize":
        spare += plan(source, load_recipe("kimi-k2.6-nvfp4-wafer")).write_nbytes
    free = spare + 2 * 6 * 24 * 64 * 2
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=free - 1))
    code, _, said = halfbyte(*words)
    assert (code, said.startswith("✗ the output needs")) == (3, True), said
    assert not out.exists()
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=free))
    code, _, said = halfbyte(*words)
    assert code == 0, said


@pytest.mark.usefixtures("namespaces")
@pytest.mark.parametrize(
    ("options", "sentence"), [("ro", "no permission to write here"), ("size=64k", "the output needs")]
)
def test_a_disk_that_cannot_be_used(source, tmp_path, options, sentence):
    (tmp_path / "disk").mkdir()
    script = 'python=$1; shift; "$python" -m halfbyte "$@"; code=$?; ls -A "$DISK"; exit $code'
    command = ["-q", "quantize", source, tmp_path / "disk" / "out", "-r", RECIPE]
    disk = tmp_path / "disk"
    done = on_a_disk_of_its_own(
        disk, options, "env", f"DISK={disk}", "sh", "-c", script, "sh", sys.executable, *command
    )
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr.startswith(f"✗ {sentence}")
    assert len(done.stderr.splitlines()) == 3


@pytest.mark.skipif(os.geteuid() == 0, reason="no folder is closed to root")
def test_a_folder_without_permission(source, tmp_path, halfbyte):
    (tmp_path / "closed").mkdir(mode=0o555)
    code, out, words = halfbyte("quantize", source, tmp_path / "closed" / "out", "-r", RECIPE)
    assert (code, out) == (3, "")
    assert words.startswith("✗ no permission to write here")


def test_a_folder_that_says_no_only_when_it_is_written_to(source, tmp_path, halfbyte, monkeypatch):
    """A network disk may reject operations that its permissions allow."""

    def refuse(*_, **__):
        raise PermissionError(errno.EACCES, "Permission denied", "/far/out")

    monkeypatch.setattr("pathlib.Path.mkdir", refuse)
    code, out, words = halfbyte("-q", "quantize", source, tmp_path / "out", "-r", RECIPE)
    assert (code, out) == (3, "")
    assert words.splitlines()[:2] == ["✗ cannot continue: Permission denied", "  where /far/out"]
    assert not (tmp_path / "out").exists()


def test_files_that_may_not_grow(source, tmp_path, whole):
    """The file size limit of a shell (`ulimit -f`): larger shards cannot be written, smaller ones are kept."""
    out = tmp_path / "out"
    limit = max(shard.nbytes for shard in plan(source, load_recipe(RECIPE)).shards) - 1
    command = [sys.executable, "-m", "halfbyte", "-q", "quantize", str(source), str(out), "-r", RECIPE, "--threads=1"]
    limited = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
    )
    assert limited.returncode == 3, limited.stderr
    assert limited.stderr.startswith("✗ cannot write: File too large")
    assert not list(out.rglob("*.part"))
    assert not (out / "config.json").exists()
    assert subprocess.run(command, capture_output=True, check=False).returncode == 0
    assert (hashes(out), files(out)) == whole


@pytest.mark.parametrize("call", ["posix_fallocate", "pwrite", "fsync", "rename"])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_quota_that_is_used_up(source, tmp_path, whole, halfbyte, monkeypatch, call, number):
    """A quota error can occur at any call, on a network disk as late as in fsync."""
    out, real, seen = tmp_path / "out", getattr(os, call), []

    def limited(*arguments, **options):
        seen.append(call)
        if len(list(out.glob("*.safetensors"))) >= 2:
            raise OSError(number, os.strerror(number))
        return real(*arguments, **options)

    with monkeypatch.context() as patched:
        patched.setattr(os, call, limited)
        code, _, words = halfbyte("-q", "quantize", source, out, "-r", RECIPE, "--threads", "1")
    assert seen
    assert code == 3, words
    assert words.startswith("✗ the disk is full\n")
    assert not list(out.rglob("*.part"))
    assert len(list(out.glob("*.safetensors"))) >= 2
    assert halfbyte("-q", "quantize", source, out, "-r", RECIPE)[0] == 0
    assert (hashes(out), files(out)) == whole
