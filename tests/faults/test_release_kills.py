"""SIGKILL in a release with instant stages: of the release itself during each write, and of a writing stage.

One release is killed many times in a row until it finishes; each run resumes the previous one.
"""

import json
import random
import shutil
import time
from pathlib import Path

import pytest
from injected import KILL_BEFORE, KILL_FIRST, KILL_HALFWAY, Fault
from test_release import BLOCK, ORDER
from wreck import contents

KILLS = 50  # of the release itself
STEP = 45  # operations to the next kill at most; a whole release has about 230
SIGKILL = -9
SOON_S = 60
OF_IT, OF_STAGE = "SIGKILL in release", "SIGKILL of a stage of release"
PASSING = {"started", "seconds", "state"}
AFTER = ("provenance", "card", "report")  # their keys contain file times


@pytest.fixture
def released(forking, tmp_path):
    """Run one release in one folder, with or without a fault."""
    source, out, say = tmp_path / "source", tmp_path / "out", tmp_path / "say"
    for folder in (source, say):
        folder.mkdir()
    (source / "config.json").write_text("{}")

    def run(fault=None):
        words = [str(source), str(out), json.dumps(BLOCK), "{}"]
        ended = forking.run(release=words, fault=fault, HALFBYTE_FAKE=str(say))
        wait_for_all(say)
        return ended

    return run, out, say


def wait_for_all(say):
    """Wait until the supervisor has stopped all processes of a killed release."""
    ran = (say / "ran").read_text().splitlines() if (say / "ran").exists() else []
    end = time.monotonic() + SOON_S
    for process in {line.split()[1] for line in ran}:
        while lives(process):
            assert time.monotonic() < end, f"{process} outlives its release"
            time.sleep(0.01)


def lives(process):
    try:
        words = Path(f"/proc/{process}/cmdline").read_bytes()
        return b"fake_stage" in words and Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def results(out):
    """Return every file but logs; records without their times."""
    found = {name: digest for name, digest in contents(out).items() if not name.startswith("halfbyte/release")}
    stages = [*stages_of(out / "halfbyte/release.json"), *stages_of(out / "halfbyte/release/after.json")]
    written = json.loads((out / "halfbyte/release.json").read_text())
    return found, stages, {key: value for key, value in written.items() if key != "stages"}


def stages_of(path):
    stages = json.loads(path.read_text())["stages"]
    assert {stage["state"] for stage in stages} <= {"done", "kept"}
    for stage in stages:
        if stage["name"] == "serve":  # where all its answers are kept, it is not started again
            assert (stage.pop("exit_code"), stage.pop("why")) in ((0, ""), (None, "all stages that use it are kept"))
    return [
        {key: value for key, value in stage.items() if key not in PASSING and not (key == "key" and name in AFTER)}
        for stage in stages
        for name in [stage["name"]]
    ]


def refuse_torn(out):
    """Check that named files are complete, and that a verdict exists only with all its evidence."""
    for path in out.rglob("*.json"):
        json.loads(path.read_text())
    release = out / "halfbyte/release.json"
    if release.exists():
        written = json.loads(release.read_text())
        done = {stage["name"] for stage in written["stages"] if stage["state"] in ("done", "kept")}
        assert written["verdict"] != "ACCEPT" or done >= set(ORDER) - set(AFTER)


def test_kills_of_a_release_and_of_its_stages(released, tally):
    run, out, say = released
    assert run().code == 0
    whole, dice = results(out), random.Random("release")
    shutil.rmtree(out)
    (say / "ran").unlink()
    pending = {OF_IT: 0, OF_STAGE: 0}
    while tally.count(OF_IT)[0] < KILLS or any(pending.values()):
        action = dice.choice((KILL_FIRST,) * 6 + (KILL_BEFORE, KILL_HALFWAY))
        more = tally.count(OF_IT)[0] < KILLS
        ended = run(Fault(out, action, dice.randint(1, STEP)) if more else None)
        if ended.done:
            fault = OF_IT if ended.code == SIGKILL else OF_STAGE
            assert ended.code in (SIGKILL, 1, 0), ended.words
            assert "Traceback" not in ended.words
            tally.injected(fault)
            pending[fault] += 1
            refuse_torn(out)
            continue
        assert ended.code == 0, ended.words
        for found, wanted in zip(results(out), whole, strict=True):
            assert found == wanted, [one for one in found if one not in wanted]
        assert not list(out.rglob("*.part"))
        for fault, count in pending.items():
            tally.survived(fault, count)
            pending[fault] = 0
        shutil.rmtree(out)
        (say / "ran").unlink()
    for fault in pending:
        injected, survived = tally.count(fault)
        assert injected == survived > 0
