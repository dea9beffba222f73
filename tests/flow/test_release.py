"""A release with instant stages: what is kept, what is repeated, and the state after a kill."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from release_runner import made

import halfbyte
from halfbyte.errors import UsageError
from halfbyte.ui.console import Output

RUNNER = Path(__file__).parent / "release_runner.py"
SOON_S = 20
BLOCK = {
    "audit": {"sample": 2},
    "compare": {"data": ["a=a.jsonl"], "samples": 4},
    "scripts": {"gpus": "1xB200"},
    "serve": {"emulate": True},
    "probe": {"profile": "mini", "budget": "10s"},
    "eval": {"suite": "mini", "against": "source", "limit": 4},
    "bench": {"shape": ["8:8"], "blocks": 1},
    "gates": {"audit": "passed", "compare": {"max_kl": 0.1}, "probe": "passed", "eval": "accept",
              "bench": "no_failed_requests"},
    "provenance": True,
    "card": True,
    "report": True,
}  # fmt: skip
ORDER = [
    "quantize",
    "audit",
    "compare",
    "scripts",
    "source",
    "serve",
    "probe",
    "eval",
    "bench",
    "provenance",
    "card",
    "report",
]


class Flow:
    """One output folder and the behavior of its commands."""

    def __init__(self, folder: Path) -> None:
        self.source, self.out, self.say = folder / "source", folder / "out", folder / "say"
        self.source.mkdir()
        (self.source / "config.json").write_text("{}")
        self.say.mkdir()

    def run(self, block=BLOCK, **options):
        """Return the verdict and the stages that ran."""
        (self.say / "ran").unlink(missing_ok=True)
        ended = made(self.source, self.out, block, **options).run(Output())
        return ended.judged.verdict, self.ran()

    def apart(self, **options) -> subprocess.Popen:
        (self.say / "ran").unlink(missing_ok=True)
        command = [sys.executable, RUNNER, self.source, self.out, json.dumps(BLOCK), json.dumps(options)]
        here = {**os.environ, "PYTHONPATH": str(Path(halfbyte.__file__).parents[1])}  # we are in another folder
        words = [str(word) for word in command]
        return subprocess.Popen(words, env=here, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)

    def ran(self) -> list[str]:
        path = self.say / "ran"
        return [line.split()[0] for line in path.read_text().splitlines()] if path.exists() else []

    def processes(self) -> list[int]:
        return [int(line.split()[1]) for line in (self.say / "ran").read_text().splitlines()]

    def set(self, name: str, text: str = "") -> None:
        (self.say / name).write_text(text)

    def unset(self, name: str) -> None:
        (self.say / name).unlink()

    def written(self):
        return json.loads((self.out / "halfbyte" / "release.json").read_text())

    def states(self) -> dict[str, str]:
        return {stage["name"]: stage["state"] for stage in self.written()["stages"]}


@pytest.fixture
def flow(tmp_path, monkeypatch):
    found = Flow(tmp_path)
    monkeypatch.setenv("HALFBYTE_FAKE", str(found.say))
    monkeypatch.chdir(tmp_path)
    return found


def soon(true) -> None:
    end = time.monotonic() + SOON_S
    while not true():
        assert time.monotonic() < end
        time.sleep(0.02)


def lives(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def test_every_stage_runs_once_in_order_and_is_kept_afterwards(flow):
    assert flow.run() == ("ACCEPT", ORDER)
    first = (flow.out / "halfbyte" / "release.json").read_bytes()
    assert set(flow.states().values()) == {"done"}
    assert flow.run() == ("ACCEPT", [])
    assert (flow.out / "halfbyte" / "release.json").read_bytes() == first  # provenance has its hash
    assert not any(map(lives, flow.processes() if (flow.say / "ran").exists() else []))


def test_release_json_is_what_the_contract_says(flow):
    flow.run()
    found = flow.written()
    assert (found["format"], found["plan"], found["recipe"], found["verdict"], found["forced"]) == (
        1, "p1", "r", "ACCEPT", False)  # fmt: skip
    eval_stage = next(stage for stage in found["stages"] if stage["name"] == "eval")
    assert eval_stage["command"] == ["halfbyte", "eval", "URL", "--suite", "mini", "--limit", "4", "--baseline",
                                     "OUT/halfbyte/eval-source", "-o", "OUT/halfbyte/eval"]  # fmt: skip
    assert eval_stage.keys() == {"name", "command", "key", "result", "sha256", "outputs_sha256", "exit_code", "started",
                                 "seconds", "state", "why"}  # fmt: skip
    assert str(flow.out) not in json.dumps(found)


def changed(*path_and_value):
    *path, value = path_and_value
    block = json.loads(json.dumps(BLOCK))
    inner = block
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return block


@pytest.mark.parametrize(
    ("block", "again"),
    [
        (changed("audit", "sample", 3), ["audit", "provenance", "card", "report"]),
        (changed("compare", "samples", 5), ["compare", "provenance", "card", "report"]),
        (changed("probe", "budget", "20s"), ["serve", "probe", "provenance", "card", "report"]),
        (changed("eval", "margin", 0.02), ["serve", "eval", "provenance", "card", "report"]),
        (changed("eval", "limit", 5), ["source", "serve", "eval", "provenance", "card", "report"]),
        (changed("bench", "blocks", 2), ["serve", "bench", "provenance", "card", "report"]),
        (
            changed("serve", "context", 64),
            ["source", "serve", "probe", "eval", "bench", "provenance", "card", "report"],
        ),
        (changed("gates", "compare", {"max_kl": 0.2}), ["provenance", "card", "report"]),
    ],
)
def test_a_changed_option_runs_only_what_depends_on_it(flow, block, again):
    flow.run()
    release = made(flow.source, flow.out, block)
    outlook = [stage.name for stage, state in release.outlook() if state == "run" and stage.name != "verdict"]
    assert flow.run(block) == ("ACCEPT", again)
    if again != ["provenance", "card", "report"]:  # what gates say is not known before they are asked
        assert outlook == again
    assert flow.run(block) == ("ACCEPT", [])


def test_changed_weights_are_measured_again(flow):
    flow.run()
    (flow.out / "model.safetensors").write_text("others")
    os.utime(flow.out / "model.safetensors")
    assert flow.run()[1] == ["quantize", *(name for name in ORDER[1:] if name != "source")]


@pytest.mark.parametrize("name", ["tokenizer.json", "chat_template.jinja", "tiktoken.model", "tokenization_kimi.py"])
def test_whatever_decides_answers_is_measured_again(flow, name):
    flow.run()
    (flow.out / name).write_text("another")
    assert flow.run()[1] == ["quantize", *(name for name in ORDER[1:] if name != "source")]


def test_a_licence_that_is_added_is_recorded_and_nothing_is_measured_again(flow):
    flow.run()
    for name in ("LICENSE", "LICENSE.txt", "NOTICE.txt", "figure.png"):
        (flow.out / name).write_text("terms")
    assert flow.run() == ("ACCEPT", ["provenance"])
    assert flow.run() == ("ACCEPT", [])


@pytest.mark.parametrize("result", ["audit.json", "probe/probe.json", "eval-source/eval.json"])
def test_a_result_that_is_gone_or_changed_is_made_again(flow, result):
    flow.run()
    path = flow.out / "halfbyte" / result
    path.write_text("{}")
    assert flow.run()[0] == "ACCEPT" and flow.ran()
    path.unlink()
    assert flow.run()[0] == "ACCEPT" and flow.ran()


def test_the_same_recipe_under_another_name_makes_nothing_again(flow):
    flow.run()
    assert flow.run(recipe="./r") == ("ACCEPT", [])
    assert flow.run(fingerprint="f2")[1][0] == "quantize"  # another recipe under the same name does


def test_a_stage_is_run_again_when_that_is_asked_for(flow):
    flow.run()
    assert flow.run(again=["probe"])[1][:2] == ["serve", "probe"]
    assert flow.run(again=["serve"])[1][:4] == ["serve", "probe", "eval", "bench"]


@pytest.mark.parametrize("name", [name for name in ORDER if name != "verdict"])
def test_a_kill_in_the_middle_of_a_stage_leaves_nothing_and_the_same_command_goes_on(flow, name):
    flow.set(f"slow-{name}")
    runner = flow.apart()
    soon(lambda: name in flow.ran())
    time.sleep(0.3)
    runner.kill()
    runner.wait()
    before, processes = flow.ran(), flow.processes()
    soon(lambda: not any(map(lives, processes)))
    if (flow.out / "halfbyte" / "release.json").exists():
        assert flow.written()["verdict"] in ("UNFINISHED", "ACCEPT")
        assert flow.written()["verdict"] == "UNFINISHED" or name in ("provenance", "card", "report")
    flow.unset(f"slow-{name}")
    verdict, ran = flow.run()
    assert verdict == "ACCEPT"
    done = [one for one in before if one not in (name, "serve")]
    assert not set(done) & set(ran)
    assert set(done) | set(ran) | {"serve"} == set(ORDER)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize("name", ["quantize", "source", "serve", "eval"])
def test_a_signal_ends_all_of_it_and_says_what_to_do(flow, name, number, code):
    flow.set(f"slow-{name}")
    runner = flow.apart()
    soon(lambda: name in flow.ran())
    time.sleep(0.3)
    runner.send_signal(number)
    said = runner.communicate(timeout=SOON_S)[0].decode()
    assert runner.returncode == code
    assert f"interrupted in '{name}'; finished stages are kept" in said and "run the same command to resume" in said
    assert "Traceback" not in said
    soon(lambda: not any(map(lives, flow.processes())))
    flow.unset(f"slow-{name}")
    assert flow.run()[0] == "ACCEPT"


def test_two_releases_in_one_folder(flow):
    flow.set("slow-audit")
    runner = flow.apart()
    soon(lambda: "audit" in flow.ran())
    with pytest.raises(UsageError, match="another run is writing into this folder"):
        flow.run()
    runner.kill()
    runner.wait()


def test_a_failed_gate_does_not_keep_other_measurements_from_being_made(flow):
    flow.set("code-probe", "1")
    flow.set("result-probe", json.dumps({"accepted": False,
             "probes": [{"name": "json", "gate": True, "verdict": "failed"}]}))  # fmt: skip
    assert flow.run() == ("REGRESSION", ORDER)
    assert flow.states()["probe"] == "done"
    assert flow.written()["why"] == ["probe: failed: json"]
    assert flow.run() == ("REGRESSION", [])  # it was measured


def test_a_stage_that_fails_is_tried_again(flow):
    flow.set("code-eval", "3")
    flow.set("nothing-eval")
    assert flow.run() == ("UNPROVEN", ORDER)
    assert flow.states()["eval"] == "failed"
    assert flow.written()["why"] == ["eval: eval says no"]
    for name in ("code-eval", "nothing-eval"):
        flow.unset(name)
    assert flow.run() == ("ACCEPT", ["serve", "eval", "provenance", "card", "report"])


def test_what_cannot_be_made_is_infeasible_and_nothing_else_is_tried(flow):
    flow.set("code-quantize", "3")
    flow.set("nothing-quantize")
    assert flow.run() == ("INFEASIBLE", ["quantize"])
    assert set(flow.states().values()) == {"failed", "skipped", "done"}  # the verdict is done


def test_a_server_that_does_not_start_is_infeasible_and_says_why(flow):
    flow.set("code-serve", "3")
    verdict, ran = flow.run()
    assert (verdict, "probe" in ran) == ("INFEASIBLE", False)
    assert flow.written()["why"][0] == "serve: serve says no"
    assert flow.states()["probe"] == "skipped"


def test_a_source_that_cannot_be_served_leaves_scores(flow):
    flow.set("code-source", "3")
    flow.set("nothing-source")
    assert flow.run()[0] == "INFEASIBLE"
    found = json.loads((flow.out / "halfbyte" / "eval" / "eval.json").read_text())
    assert "--baseline" not in found["by"]


def test_servers_of_somebody_else(flow):
    verdict, ran = flow.run(url="http://me:secret@a:1", reference_url="http://b:2")
    assert (verdict, "serve" in ran, "source" in ran) == ("ACCEPT", False, False)
    for kind in ("probe", "eval"):
        by = json.loads((flow.out / "halfbyte" / kind / f"{kind}.json").read_text())["by"]
        assert by[1] == "http://me:secret@a:1" and by[by.index("--against") + 1] == "http://b:2"
    (command,) = [stage["command"] for stage in flow.written()["stages"] if stage["name"] == "eval"]
    assert command[:3] == ["halfbyte", "eval", "URL"] and command[command.index("--against") + 1] == "URL"
    assert "secret" not in json.dumps(flow.written())


def test_stopping_early_and_going_on(flow):
    verdict, ran = flow.run(stop_after="probe")
    assert (verdict, ran[-1]) == ("UNFINISHED", "probe")
    assert flow.written()["verdict"] == "UNFINISHED"
    assert flow.written()["why"][0] == "7 of 9 gates passed; not run: eval, bench"
    assert flow.run() == ("ACCEPT", ["serve", "eval", "bench", "provenance", "card", "report"])


PUBLISHED = {**BLOCK, "publish": {"repo": "org/name", "private": True}}


def test_publishing_needs_accept_or_force(flow):
    flow.set("result-bench", json.dumps({"points": [{"failed": 1, "requests": 2, "tokens_per_second": 1.0}]}))
    verdict, ran = flow.run(PUBLISHED)
    assert (verdict, "publish" in ran, flow.written()["forced"]) == ("ANOMALOUS", False, False)
    verdict, ran = flow.run(PUBLISHED, force=True)
    assert (verdict, ran[-1], flow.written()["forced"]) == ("ANOMALOUS", "publish", True)
    flow.unset("result-bench")
    assert flow.run(PUBLISHED, again=["bench"])[1] == ["serve", "bench", "provenance", "card", "report", "publish"]
    assert flow.written()["forced"] is False
    assert flow.run(PUBLISHED)[1] == []


def test_foreign_results_are_moved_aside_and_not_lost(flow):
    flow.run(stop_after="compare")
    foreign = flow.out / "halfbyte" / "probe"
    foreign.mkdir()
    (foreign / "probe.jsonl").write_text("a night's work")
    assert flow.run()[0] == "ACCEPT"
    assert (flow.out / "halfbyte" / "probe.before-1" / "probe.jsonl").read_text() == "a night's work"


def test_a_damaged_release_json_only_costs_time(flow):
    flow.run()
    (flow.out / "halfbyte" / "release.json").write_text('{"stages": [{"name": 3}, 7], ')
    assert flow.run()[0] == "ACCEPT"
    shutil.rmtree(flow.out)


HOSTILE = "\x1b[31mred\x1b]0;title\x07 \x00\u202enot\u200b seen"


def test_hostile_words_of_a_command_do_not_reach_release_json(flow, capsys):
    flow.set("code-compare", "2")
    flow.set("nothing-compare")
    flow.set("says-compare", HOSTILE)
    flow.run()
    (why,) = [stage["why"] for stage in flow.written()["stages"] if stage["name"] == "compare"]
    assert "red" in why and "seen" in why  # JSON escapes text, so only the parsed value is checked
    said = capsys.readouterr()
    for text in (why, *flow.written()["why"], said.out, said.err):
        assert not set("\x1b\x07\x00\u202e\u200b") & set(text), text
