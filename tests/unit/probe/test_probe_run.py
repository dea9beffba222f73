"""The probe command: exit codes, files, resuming, budgets, secrets, and errors for wrong input."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

import halfbyte
from halfbyte.cli.main import run
from halfbyte.errors import UsageError
from halfbyte.probe.budget import parse_budget
from halfbyte.probe.probe import Verdict
from halfbyte.probe.profiles import load_profile

MATH = load_profile("kimi").questions["math"]["items"][0]["ask"]
SECRET = "sk-very-secret-0123456789"


@pytest.fixture
def command(server, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str) -> int:
        return run(["probe", server.url, "-o", str(tmp_path / "out"), *arguments])

    call.out = tmp_path / "out"
    return call


def rows(folder: Path, *, whole: bool = True) -> list[dict]:
    lines = (folder / "probe.jsonl").read_text().splitlines()
    return [json.loads(line) for line in (lines if whole else lines[:-1])]


def sent(records) -> list[str]:
    result = [row for row in records if row["kind"] == "request" and row["probe"] != "warm-up"]
    return [json.dumps(row["request"], sort_keys=True) for row in result]


def test_passing_gates_exit_0_and_write_both_files(command, capsys):
    assert command("--only", "math", "--only", "json") == 0
    table = capsys.readouterr()
    assert "✓ passed" in table.out
    assert "6 / 6 right" in table.out
    assert "2 of 2 probes ran (by group: card 2 of 2)" in table.out
    written = json.loads((command.out / "probe.json").read_text())
    assert written["accepted"] is True
    assert [one["name"] for one in written["probes"]] == ["json", "math"]
    ids = {row["id"] for row in rows(command.out) if row["kind"] == "request"}
    assert {one for probe in written["probes"] for one in probe["traces"]} <= ids


def test_a_failing_gate_exits_1_and_shows_text_place_and_cause(command, fake, capsys):
    fake.answers[MATH] = "It is 392"
    assert command("--only", "math") == 1
    said = capsys.readouterr()
    assert "It is ⟦392⟧" in said.out
    assert "known cause:" in said.out
    assert "1 gates failed" in said.err


def test_no_usable_answers_exit_3(command, fake):
    fake.fails[""] = 500
    assert command("--only", "math") == 3


def test_only_skipped_is_not_passed(command, fake, capsys):
    fake.fails[load_profile("kimi").questions["vision"]["ask"]] = 400
    assert command("--only", "vision") == 3
    assert "skipped probes do not count as passed" in capsys.readouterr().out


def test_json_prints_what_is_written(command, capsys):
    assert command("--only", "math", "--json", "-q") == 0
    assert json.loads(capsys.readouterr().out) == json.loads((command.out / "probe.json").read_text())


def test_the_seed_decides_the_questions(fake, probe, tmp_path):
    def asked(seed, folder):
        fake.asked.clear()
        probe("math", "context-12", seed=seed, folder=tmp_path / folder, context="2048")
        return sorted(json.dumps(one) for one in fake.asked)

    first = asked(3, "a")
    assert asked(3, "b") == first
    assert asked(4, "c") != first


def test_a_key_is_sent_and_never_written(command, fake, monkeypatch):
    monkeypatch.setenv("HALFBYTE_API_KEY", SECRET)
    fake.answers[MATH] = f"You sent {SECRET}: 391"
    fake.fails["What is 1234"] = 400  # with the key in its body
    command("--only", "math")
    assert all(one["Authorization"] == f"Bearer {SECRET}" for one in fake.headers)
    for path in command.out.iterdir():
        assert SECRET not in path.read_text(), path
    assert "***" in (command.out / "probe.jsonl").read_text()


def test_a_killed_run_resumes_without_repeated_requests(server, fake, tmp_path):
    fake.token_delay = 0.15
    arguments = ["probe", server.url, "-o", str(tmp_path / "out"), "--only", "same-again", "--only", "math"]
    program = f"import sys; from halfbyte.cli.main import run; sys.exit(run({arguments!r}))"
    environment = {**os.environ, "PYTHONPATH": str(Path(halfbyte.__file__).parents[1])}
    killed = subprocess.Popen([sys.executable, "-c", program], env=environment, stderr=subprocess.DEVNULL)
    trace = tmp_path / "out" / "probe.jsonl"
    end = time.monotonic() + 60
    while not trace.exists() or trace.read_text().count('"kind": "request"') < 12:
        assert time.monotonic() < end
        time.sleep(0.05)
    killed.send_signal(signal.SIGKILL)
    killed.wait(10)
    with trace.open("a") as file:
        file.write('{"kind": "request", "id": "half a li')  # as a kill in the middle of a line leaves it
    recorded = Counter(sent(rows(tmp_path / "out", whole=False)))
    before = len(fake.asked)
    fake.token_delay = 0.0
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert re.search(r"reusing [\d,]+ answers from ", done.stderr)
    asked_again = Counter(json.dumps(body, sort_keys=True) for body in fake.asked[before:])
    all_of_them = Counter(sent({row["id"]: row for row in rows(tmp_path / "out") if row["kind"] == "request"}.values()))
    assert sum(all_of_them.values()) == 20 + 6
    assert sum(recorded.values()) >= 10
    assert {body: asked_again[body] for body in all_of_them} == dict(all_of_them - recorded) | {
        body: 0 for body in all_of_them if all_of_them[body] == recorded[body]
    }


def test_a_finished_run_is_repeated(command, fake):
    assert command("--only", "math") == 0
    once = len(fake.asked)
    assert command("--only", "math") == 0
    assert len(fake.asked) == 2 * once


def test_a_restarted_server_gets_all_requests_again(fake, server, tmp_path):
    """A resumed run must not use the answers of another checkpoint."""
    from halfbyte.probe.client import Trace

    path = tmp_path / "probe.jsonl"
    answer = {"kind": "request", "id": "k", "again": False, "answer": {}}
    with Trace(path) as trace:
        trace.start({"ours": {"url": "u", "started": 1.0}})
        trace.add(answer)
    with Trace(path) as trace:
        trace.start({"ours": {"url": "u", "started": 1.0}})
        assert trace.kept == 1
        trace.start({"ours": {"url": "u", "started": 2.0}})
        assert trace.kept == 0


def test_the_next_run_repeats_failures_but_not_refusals(fake, server, tmp_path):
    from halfbyte.endpoint.client import Endpoint
    from halfbyte.probe.client import Client, Trace

    fake.fails = {"one": 500, "two": 400}
    for _ in range(2):
        with Trace(tmp_path / "probe.jsonl") as trace:
            trace.start({"ours": 1})
            client = Client(Endpoint(server.url, 5), "m", trace, load_profile("kimi"))
            assert client.chat("one").status == 500
            assert client.chat("two").status == 400
    said = [one["messages"][0]["content"] for one in fake.asked]
    assert (said.count("one"), said.count("two")) == (6, 1)


def test_a_dead_server_is_reported_and_the_other_probes_are_skipped(server, fake, probe):
    real = fake.say

    def die(body):
        if "17 * 23" in str(body):
            server.close()
        return real(body)

    fake.say = die
    result = probe("json", "math", "unicode-echo", timeout_s=3)
    assert result["json"].verdict is Verdict.PASSED
    assert result["unicode-echo"].verdict is Verdict.SKIPPED
    assert "does not answer any more, since math" in result["unicode-echo"].measured


def test_probes_over_budget_are_skipped_with_estimate_and_time_left(fake, probe):
    fake.hangs["Write the first three entries again"] = 2.5  # both requests of the warm-up take longer than the budget
    result = probe("math", "json", budget="4s")
    assert {one.verdict for one in result.values()} == {Verdict.SKIPPED}
    form = r"does not fit the budget: needs about \d+\.\d s, 0\.0 s of 4\.0 s are left"
    assert all(re.fullmatch(form, one.measured) for one in result.values())


def test_a_server_that_does_not_answer_the_warm_up_is_not_over_the_budget(fake, probe):
    fake.hangs["Write the first three entries again"] = 30
    result = probe("math", "json", budget="2s", timeout_s=60.0)
    assert all("did not answer the warm-up within the budget" in one.measured for one in result.values())


def test_durations():
    assert [parse_budget(text) for text in ("90s", "5m", "1.5h", " 2 min ", None)] == [90, 300, 5400, 120, None]
    for text in ("5", "m", "-3m", "0s", "5 days", ""):
        with pytest.raises(UsageError, match="is not a valid duration"):
            parse_budget(text)


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (["--only", "maths"], 2, "did you mean 'math'?"),
        (["--skip", "nothing-like-it"], 2, "unknown probe 'nothing-like-it'"),
        (["--only", "math", "--skip", "card"], 2, "--only and --skip leave no probes"),
        (["--budget", "soon"], 2, "'soon' is not a valid duration"),
        (["--context", "long"], 2, "'long' is not a valid context length"),
        (["--context", "300000"], 2, "exceeds the served 262,144"),
        (["--context", "100"], 2, "too short"),
        (["--profile", "kimmi"], 2, "did you mean 'kimi'?"),
        (["--seed", "-1"], 2, "--seed"),
        (["--model", "n"], 2, "the server has no model 'n'"),
    ],
)
def test_invalid_options_give_a_usage_error(arguments, code, sentence, command, capsys):
    assert command(*arguments) == code
    assert sentence in capsys.readouterr().err
    assert not (command.out / "probe.json").exists()


def test_an_unreachable_server_is_a_machine_error(tmp_path, capsys):
    assert run(["probe", "http://127.0.0.1:9", "-o", str(tmp_path / "out")]) == 3
    assert "the server does not respond" in capsys.readouterr().err


def test_list_sends_no_requests(capsys):
    assert run(["probe", "--list", "--only", "server"]) == 0
    assert "same-again" in capsys.readouterr().out


def test_ctrl_c_exits_130_and_keeps_the_trace(server, fake, tmp_path):
    fake.token_delay = 0.2
    arguments = ["probe", server.url, "-o", str(tmp_path / "out"), "--only", "same-again"]
    program = f"import sys; from halfbyte.cli.main import run; sys.exit(run({arguments!r}))"
    environment = {**os.environ, "PYTHONPATH": str(Path(halfbyte.__file__).parents[1])}
    running = subprocess.Popen([sys.executable, "-c", program], env=environment, stderr=subprocess.PIPE, text=True)
    trace = tmp_path / "out" / "probe.jsonl"
    end = time.monotonic() + 60
    while not trace.exists() or trace.read_text().count('"kind": "request"') < 4:
        assert time.monotonic() < end
        time.sleep(0.05)
    running.send_signal(signal.SIGINT)
    _, said = running.communicate(timeout=30)
    assert running.returncode == 130
    assert "run the same command again to resume" in said
    assert not (tmp_path / "out" / "probe.json").exists()
