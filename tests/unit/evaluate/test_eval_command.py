"""`halfbyte eval` end to end: the real lm-eval, kimi-mini's own sets, and a server with known faults."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from known_answers import COPYING, LIMIT, ROOT, WORDS, WORLD, knows, lines, saved

pytest.importorskip("lm_eval")

CARD = ("--suite", "mxfp4-card")


@pytest.fixture
def hub(tmp_path):
    """A folder with GSM8K's name and columns and our own problems."""
    folder = tmp_path / "hub" / "openai" / "gsm8k"
    folder.mkdir(parents=True)
    splits = "\n".join(f"  - split: {split}\n    path: {split}.jsonl" for split in ("test", "train"))
    (folder / "README.md").write_text(f"---\nconfigs:\n- config_name: main\n  data_files:\n{splits}\n---\n")
    for split, rows in (("test", WORDS[:LIMIT]), ("train", WORDS[100:160])):
        lines = [json.dumps({"question": row["question"], "answer": row["answer"]}) for row in rows]
        (folder / f"{split}.jsonl").write_text("\n".join(lines) + "\n")
    return tmp_path / "hub"


def test_the_mini_suite_scores_what_was_right(fake, mini, tmp_path):
    url, server = fake
    knows(server, wrong={3, 5})
    code, printed, said = mini(url, suite="mini")
    assert code == 0, said
    tasks = {one["task"]: one for one in saved(tmp_path / "out")["tasks"]}
    words, world = tasks["kimi_mini_gsm8k"], tasks["kimi_mini_mmlu"]
    assert words["candidate"]["by_metric"]["exact_match,flexible-extract"]["value"] == pytest.approx(22 / 24)
    assert words["candidate"]["by_metric"]["exact_match,strict-match"]["value"] == pytest.approx(22 / 24)
    assert world["candidate"]["by_metric"]["acc,none"]["value"] == 1
    assert tasks["kimi_mini_copying"]["candidate"]["by_metric"]["exact_match,stripped"]["value"] == 1
    assert "91.67" in printed and "SCORED" in printed
    rows = [one for one in lines(tmp_path / "out") if one["task"] == "kimi_mini_gsm8k"]
    assert [one["doc"] for one in rows if one["scores"]["exact_match,flexible-extract"] == 0] == [3, 5]
    assert {one["finish_reason"] for one in rows} == {"stop"}
    assert all(one["latency_s"] >= 0 and one["prompt_tokens"] > 100 and one["prompt_hash"] for one in rows)


def test_a_second_run_sends_nothing_and_reports_the_same(fake, mini, tmp_path):
    url, server = fake
    knows(server)
    mini(url, suite="mini")
    first, asked = saved(tmp_path / "out"), len(server.items())
    code, _, said = mini(url, suite="mini")
    assert code == 0 and "all from an earlier run" in said
    assert len(server.items()) == asked
    assert saved(tmp_path / "out")["tasks"] == first["tasks"]
    assert saved(tmp_path / "out")["requests_sent"] == 0


def test_another_checkpoint_at_the_same_address_gets_all_requests(fake, mini, tmp_path):
    url, server = fake
    knows(server)
    mini(url)
    asked = len(server.items())
    server.salt = "another "
    _, _, said = mini(url)
    assert len(server.items()) == 2 * asked and "cannot be identified as the server of the earlier run" in said


def test_the_worse_of_two_is_found_and_the_cache_does_not_hide_it(start_fake, mini, tmp_path):
    (good, a), (bad, b) = start_fake(), start_fake()
    knows(a)
    knows(b, wrong=set(range(10)))
    code, _, said = mini(bad, "--against", good, out="worse")
    assert code == 1 and "REGRESSION: kimi_mini_gsm8k" in said
    task = saved(tmp_path / "worse")["tasks"][0]
    pair = task["comparisons"]["exact_match,flexible-extract"]
    assert (pair["worse"], pair["better"]) == (10, 0)
    assert pair["mcnemar_p"] == pytest.approx(2 / 1024)
    assert pair["difference"] == pytest.approx(-10 / 24)
    assert pair["verdict"]["label"] == task["label"] == "REGRESSION"


def test_the_same_server_twice_is_not_a_regression(fake, mini):
    url, server = fake
    knows(server, wrong={1})
    code, printed, _ = mini(url, "--against", url)
    assert code == 0 and "INCONCLUSIVE" in printed and "items would decide" in printed


def test_a_truncated_answer_is_reported(fake, mini, tmp_path):
    url, server = fake
    knows(server)
    server.cut = {row["question"] for row in WORDS[:4]}
    code, printed, _ = mini(url)
    assert code == 1 and "4 of 24 answers were truncated at the token limit" in printed
    assert saved(tmp_path / "out")["tasks"][0]["label"] == "ANOMALOUS"


def test_missing_content_is_reported_not_scored_as_wrong(fake, mini):
    url, server = fake
    knows(server)
    server.nulls = {row["messages"][0]["content"] for row in COPYING}
    code, printed, _ = mini(url, suite="mini")
    assert code == 1 and "24 of 24 answers are empty, 24 of them without content" in printed


def test_an_error_does_not_end_the_run_and_is_not_a_wrong_answer(fake, mini, tmp_path):
    url, server = fake
    knows(server)
    server.refuses[f"Question: {WORDS[7]['question']}\nAnswer:"] = 400
    code, printed, _ = mini(url)
    assert code == 1 and "1 of 24 answers are missing (HTTP 400" in printed
    task = saved(tmp_path / "out")["tasks"][0]
    assert task["candidate"]["errors"] == 1
    assert task["candidate"]["by_metric"]["exact_match,flexible-extract"]["value"] == 1  # of the other 23
    asked = len(server.items())
    server.refuses.clear()
    code, _, _ = mini(url)
    assert code == 0 and len(server.items()) == asked + 1  # only what failed is asked again


def test_the_stop_list_and_everything_else_sent_is_the_same_at_any_concurrency(fake, mini):
    """lm-eval adds the end-of-text string with one request at a time, and not with more."""
    url, server = fake
    knows(server)
    sent = []
    for concurrency in (1, 8):
        before = len(server.asked)
        mini(url, "--concurrency", concurrency, suite="mini", out=f"out{concurrency}")
        items = [json.dumps(one, sort_keys=True) for one in server.asked[before:] if one.get("seed") == 1234]
        sent.append(sorted(items))
    assert sent[0] == sent[1] and len(sent[0]) > 100
    stops = {tuple(json.loads(one)["stop"]) for one in sent[0] if '"stop"' in one}
    assert ("Question:", "</s>", "<|im_end|>") in stops


def test_a_prompt_that_does_not_fit_is_reported_before_it_is_sent(fake, mini):
    url, server = fake
    knows(server)
    server.models[0]["max_model_len"] = 500
    code, _, said = mini(url)
    assert code == 1 and "the server's context is 500" in said and "serve with a context of at least" in said
    assert server.items() == []


def test_the_cards_suite_runs_lm_evals_own_task_on_local_files(fake, halfbyte, hub, tmp_path):
    url, server = fake
    knows(server)
    code, _, said = halfbyte("eval", url, *CARD, "--data-dir", hub, "-o", tmp_path / "out")
    assert code == 0, said
    task = saved(tmp_path / "out")["tasks"][0]
    assert task["candidate"]["by_seed"] == {"42": 1.0, "1234": 1.0, "7777": 1.0}
    assert "gsm8k.yaml" in saved(tmp_path / "out")["suite"]["task_files"]
    rows = lines(tmp_path / "out")
    assert len(rows) == 3 * LIMIT
    prompts = {one["prompt_hash"] for one in rows}
    assert len(prompts) == 3 * LIMIT  # the seeds show other examples ...
    assert {one["seed"] for one in server.items()} == {1234}  # ... and do not seed how the server decodes
    assert all(one["prompt"].count("Question:") == 4 and one["temperature"] == 0 for one in server.items())


def test_seeds_with_equal_prompts_are_reported(fake, halfbyte, hub, tmp_path):
    url, server = fake
    for row in WORDS[:LIMIT]:
        server.answers[row["question"] + "\nA:"] = f" The answer is {row['answer'].split('#### ')[1]}."
    out = ("--data-dir", hub, "-o", tmp_path / "out")
    code, printed, said = halfbyte("eval", url, "--suite", "kimi-card-3shot", *out)
    assert code == 0, said
    assert "all 3 seeds use the same prompts" in printed
    assert len(server.items()) == 3 * LIMIT


def test_rows_come_from_the_current_data_folder(fake, halfbyte, hub, tmp_path):
    """`datasets` caches a set by its name: offline it returns the rows of another folder."""
    url, server = fake
    knows(server)
    path = hub / "openai" / "gsm8k" / "test.jsonl"
    for count in (LIMIT, 10):
        path.write_text("\n".join(path.read_text().splitlines()[:count]) + "\n")
        halfbyte("eval", url, *CARD, "--data-dir", hub, "-o", tmp_path / f"out{count}")
        assert len(lines(tmp_path / f"out{count}")) == 3 * count


@pytest.fixture
def card_hub(hub):
    """GSM8K's and MMLU's names and columns: the 57 subjects of lm-eval's group, two rows each."""
    import lm_eval

    tasks = Path(lm_eval.__file__).parent / "tasks" / "mmlu" / "default"
    subjects = sorted(path.stem.removeprefix("mmlu_") for path in tasks.glob("mmlu_*.yaml"))
    folder = hub / "cais" / "mmlu"
    folder.mkdir(parents=True)
    configs = []
    for number, subject in enumerate(subjects):
        splits = {"test": WORLD[2 * number : 2 * number + 2], "dev": WORLD[-5:]}
        for split, rows in splits.items():
            texts = [json.dumps({"subject": subject, **{key: row[key] for key in ("question", "choices", "answer")}})
                     for row in rows]  # fmt: skip
            (folder / f"{subject}-{split}.jsonl").write_text("\n".join(texts) + "\n")
        files = "\n".join(f"  - split: {split}\n    path: {subject}-{split}.jsonl" for split in splits)
        configs.append(f"- config_name: {subject}\n  data_files:\n{files}")
    (folder / "README.md").write_text("---\nconfigs:\n" + "\n".join(configs) + "\n---\n")
    return hub


@pytest.mark.slow
def test_the_nvfp4_cards_suite_has_all_subjects_of_mmlu(fake, halfbyte, card_hub, tmp_path):
    url, server = fake
    for row in WORDS[:LIMIT]:
        server.answers[row["question"] + "\nA:"] = f" The answer is {row['answer'].split('#### ')[1]}."
    for row in WORLD[:114]:
        server.right_letters[row["question"]] = "ABCD"[row["answer"]]
    code, printed, said = halfbyte("eval", url, "--suite", "kimi-card", "--data-dir", card_hub, "-o", tmp_path / "out")
    assert code == 0, printed + said
    words, mmlu = saved(tmp_path / "out")["tasks"]
    assert [one["value"] for one in words["candidate"]["by_metric"].values()] == [1, 1]  # strict and flexible
    result = mmlu["candidate"]["by_metric"]["acc,none"]
    assert (result["items"], result["clusters"], result["value"]) == (114, 57, 1)
    shots = {one["prompt"].count("Q:") for one in server.items() if "stop" in one}
    assert shots == {9} and len(server.items()) == LIMIT + 4 * 114


def test_missing_data_is_reported_before_any_request(fake, halfbyte, hub, tmp_path):
    url, server = fake
    for argv in (("--suite", "kimi-card", "--data-dir", hub), ("--suite", "mini", "--data-dir", tmp_path)):
        code, _, said = halfbyte("eval", url, *argv, "-o", tmp_path / "out")
        assert code == 2 and "--data-dir" in said
    assert server.asked == [] and not (tmp_path / "out").exists()


def test_unreadable_data_is_reported_before_any_request(fake, halfbyte, hub, tmp_path):
    url, server = fake
    (hub / "openai" / "gsm8k" / "README.md").unlink()
    for path in (hub / "openai" / "gsm8k").iterdir():
        path.unlink()
    code, _, said = halfbyte("eval", url, *CARD, "--data-dir", hub, "-o", tmp_path / "out")
    assert code == 2 and "gsm8k needs the data set openai/gsm8k" in said
    assert server.asked == []


@pytest.mark.parametrize(
    ("file", "text", "said"),
    [
        ("train.jsonl", None, "gsm8k needs the data set openai/gsm8k"),
        ("test.jsonl", "", "gsm8k needs the data set openai/gsm8k, which cannot be read"),
        ("test.jsonl", '{"question": "1 + 1?"}', "answer"),
        ("test.jsonl", '{"q": "1 + 1?", "answer": "#### 2"}', "question"),
        ("test.jsonl", '{"question": "cut', "gsm8k needs the data set openai/gsm8k, which cannot be read"),
    ],
)
def test_files_with_wrong_columns_are_reported_before_any_request(fake, halfbyte, hub, tmp_path, file, text, said):
    url, server = fake
    path = hub / "openai" / "gsm8k" / file
    path.unlink() if text is None else path.write_text(text)
    code, printed, error = halfbyte("eval", url, *CARD, "--data-dir", hub, "-o", tmp_path / "out")
    assert code == 2 and said in error, printed + error
    assert server.asked == [] and not (tmp_path / "out").exists()


def run_apart(url, out):
    command = [sys.executable, "-m", "halfbyte", "eval", url, "--suite", "mini-generative", "--data-dir", str(ROOT)]
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    return subprocess.Popen(
        [*command, "--limit", str(LIMIT), "-o", str(out)], env=environment, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_an_interrupted_run_resumes_without_repeated_requests(fake, mini, tmp_path, how):
    url, server = fake
    knows(server)
    server.delay = 0.1
    process = run_apart(url, tmp_path / "out")
    end = time.monotonic() + 120
    while len(server.items()) < 12 and time.monotonic() < end and process.poll() is None:
        time.sleep(0.02)
    process.send_signal(how)
    _, said = process.communicate(timeout=60)
    assert process.returncode == (-9 if how == signal.SIGKILL else 130), said
    if how == signal.SIGINT:
        assert "run the same command again" in said
    assert not (tmp_path / "out" / "eval.json").exists()
    server.delay = 0
    time.sleep(0.3)  # requests in flight
    finished = {
        json.loads(line)["prompt_hash"]
        for line in (tmp_path / "out" / "requests.jsonl").read_text().splitlines()
        if '"request"' in line and line.endswith("}")
    }
    asked = len(server.items())
    code, _, said = mini(url)
    assert code == 0, said
    assert len(finished) >= 8
    assert len(server.items()) - asked == 2 * LIMIT - len(finished)
    assert saved(tmp_path / "out")["tasks"][0]["candidate"]["samples"] == LIMIT


def test_without_lm_eval_the_install_command_is_printed(fake, mini, monkeypatch):
    monkeypatch.setitem(sys.modules, "lm_eval.tasks", None)
    url, server = fake
    code, _, said = mini(url)
    assert code == 3 and "pip install 'lm-eval[api]>=0.4.13'" in said and server.asked == []
