"""The real `halfbyte release`: a checkpoint is built, audited and compared; errors leave nothing behind."""

import json
from pathlib import Path

import pytest

from halfbyte.cli.main import run

ROOT = Path(__file__).parents[2]
MINI = ROOT / "models" / "kimi-mini"
SHIPPED = (ROOT / "src" / "halfbyte" / "recipes" / "kimi-k2.6-nvfp4a16.yaml").read_text(encoding="utf-8")
BLOCK = """
release:
  audit: {sample: 1}
  compare: {data: ["a=a.txt"], samples: 4, length: 16}
  gates: {audit: passed, compare: {max_kl: 5.0}}
"""


@pytest.fixture
def recipe(tmp_path):
    path = tmp_path / "r.yaml"
    path.write_text(SHIPPED + BLOCK, encoding="utf-8")
    (tmp_path / "a.txt").write_text("A box holds 12 red pens and 7 blue pens.\n" * 8)
    return path


def test_it_is_made_audited_compared_and_kept(recipe, tmp_path, capsys):
    out = tmp_path / "out"
    words = ["release", str(MINI), str(out), "-r", str(recipe)]
    assert run([*words, "--dry-run", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["stages"]
    assert [(row["stage"], row["state"]) for row in rows] == [
        ("quantize", "run"), ("audit", "run"), ("compare", "run"), ("verdict", "run")]  # fmt: skip
    assert not out.exists()
    assert run([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["verdict"], [stage["state"] for stage in found["stages"]]) == ("ACCEPT", ["done"] * 4)
    plan = json.loads((out / "halfbyte" / "plan.json").read_text())
    assert plan["fingerprint"] == found["plan"]
    assert "release" not in plan["recipe"]
    assert run(words) == 0
    said = capsys.readouterr()
    assert "ACCEPT: all 3 gates passed" in said.out
    assert said.err.count("✓ kept") == 3
    assert run([*words, "--set", "release.gates.compare.max_kl=1e-9"]) == 1
    said = capsys.readouterr()
    assert "✗ REGRESSION: compare.max_kl: KL" in said.err
    assert said.err.count("✓ kept") == 3


def test_stopping_early_is_unfinished_everywhere(recipe, tmp_path, capsys):
    out = tmp_path / "out"
    assert run(["release", str(MINI), str(out), "-r", str(recipe), "--stop-after", "audit"]) == 0
    said = capsys.readouterr()
    assert "0 of 2 stages" in said.err  # those up to --stop-after
    assert "UNFINISHED: 2 of 3 gates passed; not run: compare" in said.err and "ANOMALOUS" not in said.out + said.err
    found = json.loads((out / "halfbyte" / "release.json").read_text())
    assert (found["verdict"], found["next"]) == (
        "UNFINISHED", ["run the same command again without --stop-after to resume"])  # fmt: skip
    assert run(["status", str(out)]) == 0 and "UNFINISHED" in capsys.readouterr().out
    assert run(["card", str(out)]) == 0 and run(["report", str(out)]) == 0
    assert "**Verdict: UNFINISHED. This release was not accepted.**" in (out / "README.md").read_text()
    assert "UNFINISHED" in (out / "halfbyte" / "report.html").read_text()
    capsys.readouterr()
    assert run(["publish", str(out), "you/model", "--dry-run"]) == 1
    assert "the verdict is UNFINISHED: only ACCEPT is published" in capsys.readouterr().out


def refused(capsys, *words) -> str:
    code = run(["release", *map(str, words)])
    assert code == 2
    return capsys.readouterr().err


def test_what_cannot_be_right_is_refused_before_anything_is_made(recipe, tmp_path, capsys):
    out = tmp_path / "out"
    assert "has no 'release' block" in refused(capsys, MINI, out, "-r", "kimi-k2.6-nvfp4a16")
    no_server = refused(capsys, MINI, out, "-r", recipe, "--set", "release.probe={}")
    assert "stage 'probe' needs a server, but there is no 'serve' stage" in no_server
    assert "no stage 'bench'" in refused(capsys, MINI, out, "-r", recipe, "--stop-after", "bench")
    assert refused(capsys, tmp_path / "none", out, "-r", recipe)
    assert not out.exists()
    out.mkdir()
    (out / "letter.txt").write_text("mine")
    assert "the output folder is not empty" in refused(capsys, MINI, out, "-r", recipe)
    assert [path.name for path in out.iterdir()] == ["letter.txt"]
