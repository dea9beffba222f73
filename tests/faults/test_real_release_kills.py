"""SIGKILL at random moments of the real `halfbyte release` with its real stages: finished work is kept."""

import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest
from calibratable import UNSERVED_RELEASE, WAFER, small, texts

from halfbyte.recipe.load import recipe_text

pytestmark = pytest.mark.slow  # stages are processes that import all they need: some minutes

KILLS = 12
FAULT = "SIGKILL in release as it is typed"
SOURCES = Path(__file__).parents[2] / "src"
COMMAND = [sys.executable, "-P", "-m", "halfbyte"]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(SOURCES), "OMP_NUM_THREADS": "1"}


@pytest.fixture
def words(tmp_path):
    """The command of a release of a calibrated recipe, without its output folder."""
    data = texts(tmp_path / "texts.jsonl") or tmp_path / "texts.jsonl"
    recipe = tmp_path / "release.yaml"
    recipe.write_text(recipe_text(WAFER).partition("\nrelease:")[0] + UNSERVED_RELEASE.format(data=data))
    source = small(tmp_path / "source", experts=8)
    given = ["--data", f"news={data}", "--samples", "6", "--set", "calibrate.sequence_length=24"]
    return lambda out: ["release", str(source), str(out), "-r", str(recipe), *given]


def run(words):
    done = subprocess.run([*COMMAND, *words], env=ENVIRONMENT, capture_output=True, text=True, check=False, timeout=600)
    return done.returncode, done.stdout + done.stderr


def weights(out):
    return {path.name: path.read_bytes() for path in out.glob("*.safetensors")}


def test_a_release_that_is_killed_again_and_again(tmp_path, words, tally):
    whole, out, dice = tmp_path / "whole", tmp_path / "out", random.Random(12)
    begin = time.monotonic()
    code, said = run(words(whole))
    assert code == 0, said
    seconds = time.monotonic() - begin
    for _ in range(KILLS):
        process = subprocess.Popen(
            [*COMMAND, *words(out)], env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        time.sleep(dice.uniform(0.02, 0.4) * seconds)
        if process.poll() is None:
            tally.injected(FAULT)
        process.kill()
        process.wait()
        for path in out.glob("*.safetensors"):
            assert path.read_bytes() == (whole / path.name).read_bytes(), f"{path.name} is torn"
    struck, _ = tally.count(FAULT)
    assert struck >= KILLS // 2, "too many came through: adapt the waiting times"
    code, said = run(words(out))
    assert code == 0, said
    assert weights(out) == weights(whole)
    found, wanted = (json.loads((one / "halfbyte/release.json").read_text()) for one in (out, whole))
    assert (found["verdict"], found["gates"]) == (wanted["verdict"], wanted["gates"])
    assert run(["verify", str(out)])[0] == 0
    assert not list(out.rglob("*.part"))
    tally.survived(FAULT, struck)
