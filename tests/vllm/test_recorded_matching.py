"""The recorded results of vLLM's matching functions equal those of the installed vLLM."""

import json
from pathlib import Path

GOLDEN = Path(__file__).parents[1] / "golden" / "vllm_matching.json"


def test_vllm_itself_still_says_so(tmp_path, in_vllm):
    answers = json.loads(GOLDEN.read_text())["families"]
    (tmp_path / "cases.json").write_text(json.dumps(answers))  # the script reads the questions and answers them again
    in_vllm(GOLDEN.with_name("make_vllm_matching.py"), tmp_path / "cases.json", tmp_path / "answers.json")
    assert json.loads((tmp_path / "answers.json").read_text())["families"] == answers
