"""status shows the progress of a release, for any content of its records."""

import json

import pytest
from card_evidence import RELEASE as RELEASE_RECORD
from pico import write_pico

from halfbyte.checkpoint.output_folder import FOLDER, RELEASE
from halfbyte.engine.pipeline import quantize
from halfbyte.evidence.release import AfterRelease
from halfbyte.recipe.load import load_recipe


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    folder = tmp_path_factory.mktemp("released")
    quantize(write_pico(folder / "source"), folder / "out", load_recipe("kimi-k2.6-mxfp4-wafer"))
    (folder / "out" / FOLDER / AfterRelease.file).parent.mkdir()
    return folder / "out"


def stage(name, state):
    return {"name": name, "command": [], "key": "k", "state": state}


def test_stages_and_verdict_are_told(out, halfbyte):
    code, shown, _ = halfbyte("status", out)
    assert code == 0
    assert "release" not in shown
    stages = [stage("quantize", "done"), stage("probe", "failed")]
    held = {**RELEASE_RECORD, "verdict": "REGRESSION", "stages": stages}
    (out / FOLDER / RELEASE).write_text(json.dumps(held))
    (out / FOLDER / AfterRelease.file).write_text(json.dumps({"format": 1, "stages": [stage("card", "kept")]}))
    code, shown, _ = halfbyte("status", out)
    assert code == 0
    assert "release   quantize done, probe failed, card kept" in shown
    assert "verdict   REGRESSION" in shown


@pytest.mark.parametrize(
    ("verdict", "hint"),
    [("ACCEPT", "halfbyte publish {} REPO"), ("UNFINISHED", "run the same command again to resume"),
     ("REGRESSION", "halfbyte audit {}")],
)  # fmt: skip
def test_the_next_command_follows_the_verdict(out, halfbyte, verdict, hint):
    (out / FOLDER / RELEASE).write_text(json.dumps({**RELEASE_RECORD, "verdict": verdict, "stages": []}))
    assert halfbyte("status", out)[2].splitlines()[-1] == f"next: {hint.format(out)}"


@pytest.mark.parametrize("found", ["", "[]", '{"stages": 3, "verdict": []}', '{"stages": [1, {"name": {}}]}'])
def test_damaged_records_tell_nothing(out, halfbyte, found):
    (out / FOLDER / RELEASE).write_text(found)
    (out / FOLDER / AfterRelease.file).unlink(missing_ok=True)
    code, shown, words = halfbyte("status", out)
    assert code == 0, words
    assert "verdict" not in shown
