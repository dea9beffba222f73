"""The coding suites end to end: lm-eval's own tasks, our own items, and programs that run only in the sandbox."""

import json
import os
from pathlib import Path

import pytest

pytest.importorskip("lm_eval")

from halfbyte.evaluate import programs
from halfbyte.evaluate.programs import CodeJudge
from halfbyte.sandbox import tiers
from halfbyte.sandbox.tiers import Tier, find_tier

ROOT = Path(__file__).parents[3]

# Our own items in HumanEval's columns, with right and broken bodies.
ADD = ("add_up", 'def add_up(numbers):\n    """Return the sum of a list."""\n', "    return sum(numbers)\n")
LAST = ("last_word", 'def last_word(text):\n    """Return the last word of a text, or nothing."""\n',
        "    words = text.split()\n    return words[-1] if words else ''\n")  # fmt: skip
GAPS = ("gaps", 'from typing import List\n\ndef gaps(row: List[int]) -> List[int]:\n    """Return the steps."""\n',
        "    return [b - a for a, b in zip(row, row[1:])]\n")  # fmt: skip
TESTS = {
    "add_up": "def check(candidate):\n    assert candidate([1, 2, 3]) == 6\n    assert candidate([]) == 0\n",
    "last_word": "def check(candidate):\n    assert candidate('one two') == 'two'\n    assert candidate('') == ''\n",
    "gaps": "def check(candidate):\n    assert candidate([1, 4, 9]) == [3, 5]\n    assert candidate([7]) == []\n",
}
HOSTILE = {
    "wrong": "    return 0\n",
    "no Python": "    return sum(numbers\n",
    "loops": "    while True: pass\n",
    "leaves early": "    import sys; sys.exit(0)\n",
    "leaves at once": "    import os; os._exit(0)\n",
    "eats memory": "    return len(bytearray(10**11))\n",
    "talks": "    while True: print('x' * 10000)\n",
    "reads a key": "    import os; assert 'the key' in os.environ.values()\n    return sum(numbers)\n",
    "touches a file": "    open({touched!r}, 'w').write('x')\n    return sum(numbers)\n",
}


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    monkeypatch.setenv("SECRET", "the key")
    monkeypatch.delenv("HF_ALLOW_CODE_EVAL", raising=False)
    monkeypatch.setattr(programs, "LIMITS", programs.Limits(seconds=3, output_nbytes=100_000))


@pytest.fixture
def sandbox() -> Tier:
    tier = find_tier()
    if tier.engine is None:
        pytest.skip(f"no sandbox here: {tier.reason}")
    return tier


def write_set(folder: Path, config: str, rows: list[dict]):
    folder.mkdir(parents=True)
    splits = "  - split: test\n    path: test.jsonl\n"
    (folder / "README.md").write_text(f"---\nconfigs:\n- config_name: {config}\n  data_files:\n{splits}---\n")
    (folder / "test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def human_eval(names_and_prompts) -> list[dict]:
    return [
        {
            "task_id": f"Ours/{number}",
            "prompt": prompt,
            "entry_point": name,
            "test": TESTS[name.rstrip("_0123456789")],
            "canonical_solution": body,
        }
        for number, (name, prompt, body) in enumerate(names_and_prompts)
    ]


MBPP = [
    {
        "task_id": 900 + number,
        "text": f"Write a function number {number} to double a number.",
        "code": f"def double{number}(x):\n    return 2 * x",
        "test_list": [f"assert double{number}({x}) == {2 * x}" for x in (1, 5, -3)],
        "test_setup_code": "",
        "challenge_test_list": [],
    }
    for number in range(3)
]


@pytest.fixture
def hub(tmp_path):
    """HumanEval and MBPP by name and columns, with our own items."""
    hostile = [(f"add_up_{number}", ADD[1].replace("add_up", f"add_up_{number}"), "") for number in range(len(HOSTILE))]
    write_set(tmp_path / "hub/openai/openai_humaneval", "openai_humaneval", human_eval([ADD, LAST, GAPS, *hostile]))
    write_set(tmp_path / "hub/google-research-datasets/mbpp", "full", MBPP)
    return tmp_path / "hub"


def saved(folder):
    tasks = json.loads((folder / "eval.json").read_text())["tasks"]
    items = [json.loads(line) for line in (folder / "eval.jsonl").read_text().splitlines()]
    return {one["task"]: one for one in tasks}, items


def test_right_wrong_looping_and_hostile_programs(fake, halfbyte, hub, tmp_path, sandbox):
    url, server = fake
    touched = tmp_path / "touched"
    for name, _, body in (ADD, LAST, GAPS):
        server.answers[f"def {name}("] = body + "```\nThat is all."
    for number, body in enumerate(HOSTILE.values()):
        server.answers[f"def add_up_{number}("] = body.replace("{touched!r}", repr(str(touched)))
    right, wrong, dangling = MBPP
    server.answers[right["text"]] = right["code"] + "\n[DONE]\nAnd so on."
    server.answers[wrong["text"]] = "def double1(x):\n    return x\n[DONE]"
    server.answers[dangling["text"]] = "def double2(x):"
    halfbyte("eval", url, "--suite", "coding", "--data-dir", hub, "-o", tmp_path / "out")
    tasks, items = saved(tmp_path / "out")
    ours = [one for one in items if one["task"] == "humaneval_instruct"]
    assert [one["scores"]["pass@1,create_test"] for one in ours] == [1, 1, 1] + [0] * len(HOSTILE)
    ended = dict(zip(HOSTILE, (one["programs"][0] for one in ours[3:]), strict=True))
    assert ended["talks"].pop("ended") in ("output", "time")  # whichever limit a busy machine reaches first
    assert {name: one["ended"] for name, one in ended.items() if name != "talks"} == {
        "wrong": "exit", "no Python": "exit", "loops": "time", "leaves early": "exit", "leaves at once": "exit",
        "eats memory": "memory", "reads a key": "exit", "touches a file": "exit",
    }  # fmt: skip
    assert ended["wrong"]["said"] == "AssertionError" and ended["wrong"]["code"] == 1
    assert ended["leaves early"]["said"] == ended["leaves at once"]["said"] == "it exited before its tests"
    assert not touched.exists()
    theirs = [one for one in items if one["task"] == "mbpp"]
    assert [one["scores"]["pass_at_1,none"] for one in theirs] == [1, 0, 0]
    assert [len(one["programs"]) for one in items] == [1] * len(items)
    assert tasks["humaneval_instruct"]["candidate"]["by_metric"]["pass@1,create_test"]["value"] == pytest.approx(3 / 12)
    head = json.loads((tmp_path / "out" / "eval.json").read_text())
    assert head["sandbox"] == sandbox.sentence
    # lm-eval starts the answer, so the request asks the server to continue it.
    asked = [one for one in server.items() if "def gaps(" in str(one.get("messages"))]
    assert asked[0]["messages"][-1]["role"] == "assistant" and asked[0]["messages"][-1]["content"].endswith('"""\n\n')
    assert (asked[0]["continue_final_message"], asked[0]["add_generation_prompt"]) == (True, False)


def test_the_mini_suite_runs_kimi_minis_programs(fake, halfbyte, tmp_path, sandbox):
    url, server = fake
    rows = [json.loads(line) for line in (ROOT / "evals/programs/test.jsonl").read_text().splitlines()][:8]
    for number, row in enumerate(rows):
        code = row["answer"] if number % 4 else row["answer"].replace("return", "return not")
        server.answers[row["messages"][0]["content"]] = f"```python\n{code}\n```" if number % 2 else code
    halfbyte("eval", url, "--suite", "mini-coding", "--data-dir", ROOT, "--limit", 8, "-o", tmp_path / "out")
    _, items = saved(tmp_path / "out")
    assert [one["scores"]["pass_at_1,code"] for one in items] == [0, 1, 1, 1, 0, 1, 1, 1]
    assert all(one["programs"][0]["passed"] == bool(one["scores"]["pass_at_1,code"]) for one in items)


def test_without_a_sandbox_no_request_is_sent(fake, halfbyte, hub, tmp_path, monkeypatch):
    url, server = fake
    monkeypatch.setattr(tiers, "_cached", [Tier("none", None, "user namespaces are off")])
    code, _, said = halfbyte("eval", url, "--suite", "coding", "--data-dir", hub, "-o", tmp_path / "out")
    assert code == 3
    assert "no sandbox available for model-written programs" in said and "user namespaces are off" in said
    assert server.asked == [] and not (tmp_path / "out").exists()


def test_a_sandbox_that_breaks_is_not_a_wrong_answer(fake, halfbyte, hub, tmp_path, sandbox, monkeypatch):
    from halfbyte.errors import MachineError

    class Broken:
        name = "broken"

        def run(self, source, limits, stdin=""):
            if "add_up" in source:
                raise MachineError("the sandbox did not start: no more namespaces", where="broken")
            return sandbox.engine.run(source, limits, stdin)

    url, _ = fake
    monkeypatch.setattr(tiers, "_cached", [Tier("isolated", Broken())])
    code, _, said = halfbyte("eval", url, "--suite", "coding", "--data-dir", hub, "-o", tmp_path / "out")
    assert code == 3 and "no more namespaces" in said
    assert not (tmp_path / "out" / "eval.json").exists()


@pytest.fixture
def judge(sandbox):
    judge = CodeJudge()
    judge.reset(sandbox)
    return judge


@pytest.mark.parametrize(("name", "prompt", "body"), [ADD, LAST, GAPS])
def test_canonical_solutions_pass_and_broken_ones_fail(judge, name, prompt, body):
    broken = [
        body.replace("sum(", "max(").replace("[-1]", "[0]").replace("b - a", "a - b"),
        "    pass\n",
        body.replace("return", "retrun"),
    ]
    test = f"{TESTS[name]}\ncheck({name})"
    shares, results = judge.compute(
        references=[test], predictions=[[prompt + body, *(prompt + one for one in broken)]], k=[1, 4]
    )
    assert [run["passed"] for _, run in results[0]] == [True, False, False, False]
    assert shares == {"pass@1": 0.25, "pass@4": 1.0}


def test_pass_at_k_is_the_unbiased_estimate():
    # The definition: of all ways to draw k of n, the share with at least one right.
    from itertools import combinations

    for total in range(1, 7):
        for right in range(total + 1):
            for k in range(1, total + 1):
                draws = list(combinations([True] * right + [False] * (total - right), k))
                expected = sum(any(draw) for draw in draws) / len(draws)
                assert programs._pass_at(total, right, k) == pytest.approx(expected, abs=1e-12)


def test_the_real_code_eval_is_out_of_reach(judge):
    import evaluate

    programs.use_sandbox()
    assert evaluate.load("code_eval") is programs.JUDGE
    assert "HF_ALLOW_CODE_EVAL" not in os.environ
