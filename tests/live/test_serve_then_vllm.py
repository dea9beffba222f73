"""`serve --run --then`: one command starts a real vLLM, benchmarks and evaluates it, and stops it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import quick_start
from served_variants import make_variant

import halfbyte
from halfbyte.bench.records import read_records

pytestmark = [pytest.mark.live, pytest.mark.slow]  # four minutes: `make slow`
pytest.importorskip("lm_eval")

ROOT = Path(__file__).parents[2]
SMALL = ["--emulate", "--activations", "off", "--context", "2048", "--text-only", "--set", "enforce_eager=true"]
BENCH = "bench --shape 64:8 --concurrency 1,2 --blocks 2 --timeout 120"
ITEMS = 12


@pytest.fixture(scope="module")
def done(tmp_path_factory, vllm) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """All measurements in one server."""
    folder = tmp_path_factory.mktemp("then")
    checkpoint = make_variant("nvfp4-modelopt", folder)
    evaluate = f"eval --suite mini-choices --data-dir {ROOT} --limit {ITEMS} -o {folder / 'eval'}"
    then = [f"{BENCH} -o {folder / 'bench'}", f"{BENCH} --chat -o {folder / 'chat'}", evaluate]
    command = [sys.executable, "-m", "halfbyte", "serve", str(checkpoint), "--run", *SMALL]
    for one in then:
        command += ["--then", one]
    own = {"PYTHONPATH": str(Path(halfbyte.__file__).parents[1]), "HALFBYTE_VLLM_BIN": str(vllm.command)}
    environment = {**os.environ, **own, "OMP_NUM_THREADS": quick_start.ENVIRONMENT["OMP_NUM_THREADS"]}
    environment.pop("HF_HUB_OFFLINE", None)
    ran = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=1500, check=False
    )
    return folder, ran


def test_all_of_it_ends_well(done):
    folder, ran = done
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "Traceback" not in ran.stderr
    assert {path.name for path in folder.iterdir()} >= {"bench", "chat", "eval", "serve.log"}


@pytest.mark.parametrize("name", ["bench", "chat"])
def test_bench_counts_every_block_and_claims_no_speed(done, name):
    folder, _ = done
    _, blocks = read_records(folder / name / "bench.jsonl")
    assert len(blocks) == 2 * 2  # two loads, two blocks each
    found = json.loads((folder / name / "bench.json").read_text())
    assert found["headlines"] == []
    assert found["no_claim_because"]


def test_bench_knows_how_long_the_start_took(done):
    folder, ran = done
    found = json.loads((folder / "bench" / "bench.json").read_text())
    assert "boot" in json.dumps(found), ran.stderr
    assert (folder / "serve.log").stat().st_size


def test_eval_scores_in_the_same_server(done):
    folder, _ = done
    found = json.loads((folder / "eval" / "eval.json").read_text())
    assert found["label"] == "SCORED"
    assert [one["candidate"]["errors"] for one in found["tasks"]] == [0] * len(found["tasks"])
