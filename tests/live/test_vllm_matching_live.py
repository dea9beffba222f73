"""The recorded answers of vLLM's matching functions are those that the vLLM of today gives."""

import json
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.live
GOLDEN = Path(__file__).parents[1] / "golden" / "vllm_matching.json"


def test_vllm_itself_still_says_so(tmp_path, vllm_bin):
    answers = json.loads(GOLDEN.read_text())["families"]
    (tmp_path / "cases.json").write_text(json.dumps(answers))  # the script reads what was asked, and answers anew
    script = GOLDEN.with_name("make_vllm_matching.py")
    command = [vllm_bin.with_name("python"), script, tmp_path / "cases.json", tmp_path / "answers.json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "answers.json").read_text())["families"] == answers
