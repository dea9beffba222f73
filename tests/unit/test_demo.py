"""Check the recipes and stages of `make demo`; tests/live runs a complete one."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from halfbyte.recipe.load import load_recipe, load_release

ROOT = Path(__file__).parents[2]
DEMO = ROOT / "examples" / "demo.py"
EXAMPLES = sorted((ROOT / "examples").glob("kimi-mini-*.yaml"))
SERVED = [path for path in EXAMPLES if "unserved" not in path.stem]


def test_a_recipe_that_is_not_there(tmp_path):
    asked = subprocess.run([sys.executable, DEMO, "nvfp5"], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert asked.returncode == 2
    assert asked.stderr == (
        "✗ unknown recipe 'nvfp5'\n"
        "  where RECIPE\n"
        "  fix   make demo RECIPE=mxfp4 or RECIPE=mxfp4-unserved or RECIPE=nvfp4 or RECIPE=nvfp4-reap24, or the "
        "path of a file\n"
    )
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("path", SERVED, ids=lambda path: path.stem)
def test_every_stage_of_the_demo_is_one_that_halfbyte_has(path, halfbyte, monkeypatch):
    """All stages are present, and the dry run writes nothing."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr("halfbyte.release.preflight.Preflight.run", lambda _: [])  # independent of installed packages
    code, shown, said = halfbyte("release", "models/kimi-mini", "OUT", "-r", path, "--dry-run", "--json")
    assert code == 0, said
    stages = [stage["stage"] for stage in json.loads(shown)["stages"]]
    wanted = ["quantize", "audit", "compare", "scripts", "source", "serve", "probe", "eval", "bench", "verdict",
              "provenance", "card", "report"]  # fmt: skip
    assert [stage for stage in stages if stage != "loops"] == wanted
    assert not Path("OUT").exists()


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_what_is_compared_was_not_calibrated_on(path):
    recipe, release = load_recipe(path), load_release(str(path), ())
    assert release is not None
    calibrated = {Path(one.source).resolve() for one in recipe.calibrate.datasets} if recipe.calibrate else set()
    compared = {Path(pair.partition("=")[2].rpartition(":")[0]) for pair in release["compare"]["data"]}
    assert all(file.is_file() for file in compared)
    assert not calibrated & {file.resolve() for file in compared}
