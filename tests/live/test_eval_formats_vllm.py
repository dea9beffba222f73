"""`halfbyte eval` on three builds of kimi-mini behind a real vLLM: it detects half of the experts missing, and only
that.

INT4 is the reference, evaluated by itself, then again (without an alarm), then NVFP4, then NVFP4 with the 16 of 32
experts that REAP keeps. One server at a time with `--baseline`, as on a single node. The emulation plugin computes as
the formats do. HALFBYTE_EVAL_LIMIT changes the number of items per task from 60.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from emulated_server import EmulatedServer
from served_variants import make_variant

from halfbyte.bench.server import EMULATED, inspect_server, metrics

pytestmark = [pytest.mark.live, pytest.mark.slow]  # a quarter of an hour: `make slow`
pytest.importorskip("lm_eval")

ROOT = Path(__file__).parents[2]
LIMIT = int(os.environ.get("HALFBYTE_EVAL_LIMIT", "60"))
OPTIONS = [
    "--quantization", "halfbyte_emulate", "--served-model-name", "mini", "--max-model-len", "2048",
    "--max-num-seqs", "8", "--max-num-batched-tokens", "2048", "--enforce-eager", "--reasoning-parser", "kimi_k2",
    "--limit-mm-per-prompt", '{"image": 0, "video": 0, "vision_chunk": 0}', "--distributed-executor-backend", "uni",
]  # fmt: skip
SUITE, CHOICES = "mini-choices", "kimi_mini_mmlu"  # emulated on a CPU, every written token costs a second


def evaluate(url: str, out: Path, baseline: Path | None) -> tuple[int, str]:
    """Run `halfbyte eval` in a separate process; return its exit code and output."""
    command = [sys.executable, "-m", "halfbyte", "eval", url, "--suite", SUITE, "--data-dir", str(ROOT)]
    command += ["--limit", str(LIMIT), "-o", str(out), *(["--baseline", str(baseline)] if baseline else [])]
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=3600, check=False)
    print(f"\n{out.name}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    return done.returncode, done.stdout + done.stderr


@pytest.fixture(scope="module")
def runs(tmp_path_factory, vllm_bin, cpu_options):
    """Every run: its exit code, output, and eval.json."""
    folder = Path(os.environ.get("HALFBYTE_EVAL_RUNS", tmp_path_factory.mktemp("eval-formats")))
    folder.mkdir(exist_ok=True)
    asked = {"int4": ["int4", "int4-again"], "nvfp4-modelopt": ["nvfp4"], "nvfp4-half-pruned": ["half-pruned"]}
    found = {}
    for variant, names in asked.items():
        checkpoint = make_variant(variant, folder)
        server = EmulatedServer(vllm_bin, checkpoint, folder / f"{variant}.log", [*OPTIONS, *cpu_options])
        try:
            assert metrics(server.url).emulated, "it says so on its page, to whoever measures it from elsewhere"
            assert inspect_server(server.url, gpus="8xB200").no_claim_because == EMULATED
            for name in names:
                code, said = evaluate(server.url, folder / name, folder / "int4" if name != "int4" else None)
                found[name] = (code, said, json.loads((folder / name / "eval.json").read_text()))
        finally:
            left = server.stop()
        assert left == []
    return found


def labels(run) -> dict[str, str]:
    return {task["task"]: task["label"] for task in run[2]["tasks"]}


def compared(run, task: str) -> dict:
    (found,) = (one for one in run[2]["tasks"] if one["task"] == task)
    return found["comparisons"][found["primary"]]


def test_the_reference_is_a_score(runs):
    code, _, found = runs["int4"]
    assert code == 0
    assert found["label"] == "SCORED"
    scores = {one["task"]: one["candidate"]["by_metric"][one["primary"]]["value"] for one in found["tasks"]}
    assert min(scores.values()) > 0.6, scores
    assert all(one["candidate"]["errors"] == 0 for one in found["tasks"])


def test_no_alarm_for_the_same_checkpoint_asked_again(runs):
    code, said, found = runs["int4-again"]
    assert code == 0
    assert set(labels(runs["int4-again"]).values()) <= {"ACCEPT", "INCONCLUSIVE"}, said
    assert found["differences"] == [], "the same server tells the same of itself"
    assert found["requests_sent"] > 0, "asked again, not read again"


def test_no_alarm_for_nvfp4(runs):
    code, said, _ = runs["nvfp4"]
    assert code == 0
    assert set(labels(runs["nvfp4"]).values()) <= {"ACCEPT", "INCONCLUSIVE"}, said


def test_half_of_the_experts_is_found_worse(runs):
    code, said, _ = runs["half-pruned"]
    assert code == 1
    # Answers that are all truncated or wrong give no valid score; likelihoods of choices always do.
    assert set(labels(runs["half-pruned"]).values()) <= {"REGRESSION", "ANOMALOUS"}, said
    assert labels(runs["half-pruned"])[CHOICES] == "REGRESSION"
    low, high = compared(runs["half-pruned"], CHOICES)["interval"]
    assert low < high < 0
