"""The preflight of a release: missing requirements stop it before anything is written, stage by stage."""

import json
import re
import shutil
from pathlib import Path

import pytest

from halfbyte.cli.main import run
from halfbyte.machine.resources import Memory
from halfbyte.release import preflight
from halfbyte.release.preflight import Preflight, Requirement, gpu_count, infeasible

ROOT = Path(__file__).parents[2]
MINI = ROOT / "models" / "kimi-mini"
W4A16 = (ROOT / "src" / "halfbyte" / "recipes" / "kimi-k2.6-nvfp4a16.yaml").read_text(encoding="utf-8")
CALIBRATED = (ROOT / "examples" / "kimi-mini-nvfp4.yaml").read_text(encoding="utf-8").partition("\nrelease:")[0]
UNSERVED = """
release:
  audit: {{sample: 1}}
  compare: {{data: ["a={data}"], samples: 2, length: 16}}
  gates: {{audit: passed}}
"""
SERVED = (
    UNSERVED
    + """  serve: {serve}
  probe: {{profile: mini, budget: 10s}}
"""
)
NOWHERE = "http://127.0.0.1:9"


@pytest.fixture
def release(tmp_path, capsys, monkeypatch):
    """Run a release of kimi-mini; return its exit code, JSON and stderr. The output folder must stay unchanged."""
    monkeypatch.setenv("HF_ENDPOINT", NOWHERE)  # no test asks the Hub
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    data = tmp_path / "a.txt"
    data.write_text("A box holds 12 red pens and 7 blue pens.\n" * 8)
    out = tmp_path / "out"

    def call(block, *words, recipe=W4A16, source=MINI, serve="{}"):
        path = tmp_path / "r.yaml"
        path.write_text(recipe + block.format(data=data, serve=serve), encoding="utf-8")
        code = run(["release", str(source), str(out), "-r", str(path), "--json", *map(str, words)])
        said = capsys.readouterr()
        assert code == 0 or not out.exists()
        return code, json.loads(said.out) if said.out else {}, said.err

    return call


@pytest.fixture
def cpu_vllm(tmp_path, monkeypatch):
    """A fake vLLM with only a version: the CPU build, as on a machine without a GPU."""
    command = tmp_path / "bin" / "vllm"
    command.parent.mkdir()
    command.write_text("#!/bin/sh\necho 0.32.0+cpu\n")
    command.chmod(0o755)
    monkeypatch.setenv("HALFBYTE_VLLM_BIN", str(command))
    return command


def bad(found):
    return [(row["stage"], row["here"]) for row in found["preflight"] if row["level"] == "bad"]


def test_a_dry_run_lists_what_every_stage_needs(release):
    code, found, _ = release(UNSERVED, "--dry-run")
    assert code == 0 and bad(found) == [] and "verdict" not in found
    needs = [(row["stage"], row["needs"]) for row in found["preflight"]]
    assert [bool(re.fullmatch(r"[\d.]+ MB of (disk|memory)", need)) for _, need in needs].count(True) == 2, needs
    sizes = {
        row["needs"].split()[0]: row["here"] for row in found["preflight"] if row["needs"][:6] in ("source", "recipe")
    }
    assert sizes["source"].split(", ")[1] == sizes["recipe"].split(" -> ")[0]  # one size of one source
    assert [stage for stage, _ in needs][-1] == "compare"
    assert [row["stage"] for row in found["stages"]] == ["quantize", "audit", "compare", "verdict"]


def test_native_serving_without_a_gpu_is_infeasible_before_the_first_byte(release, cpu_vllm):
    code, found, said = release(SERVED, serve="{gpus: 8xB200}")
    assert (code, found["verdict"]) == (3, "INFEASIBLE")
    assert bad(found) == [("serve", "no GPUs, and vllm 0.32.0+cpu runs on the CPU")]
    assert "✗ INFEASIBLE: 1 of" in said and "nothing was written" in said
    assert "release.serve.emulate=true" in said and "--stop-after compare runs the stages before serve" in said


@pytest.mark.parametrize("source", ["", "  source: {{gpus: 8xB200}}\n"])
def test_the_fix_for_a_source_without_gpus_works(release, cpu_vllm, monkeypatch, source):
    monkeypatch.setattr(preflight, "_plugin", lambda _: "installed")
    monkeypatch.setattr(preflight.Preflight, "_eval", lambda *_: None, raising=False)
    block = SERVED + source + "  eval: {{suite: mini-choices, against: source, limit: 2}}\n"
    _, found, _ = release(block, "--dry-run", serve="{gpus: 8xB200}")
    fixes = [row["fix"] for row in found["preflight"] if row["level"] == "bad" and row["stage"] in ("source", "serve")]
    assert len(fixes) == 2
    options = {word for fix in fixes for word in re.findall(r"release\.\S+=[a-z]+", fix)}
    words = [word for option in options for word in ("--set", option)]
    _, found, _ = release(block, "--dry-run", *words, serve="{gpus: 8xB200}")
    assert [stage for stage, _ in bad(found) if stage in ("source", "serve")] == []


def test_the_last_line_names_what_is_missing(release):
    recipe = CALIBRATED.replace("data/calibration/articles.jsonl", "data/nope.jsonl")
    _, _, said = release(UNSERVED, recipe=recipe.replace("data/calibration", str(ROOT / "data" / "calibration")))
    assert "quantize: data set data/nope.jsonl (article): file not found" in said.partition("INFEASIBLE")[2]


def test_4_bit_weights_on_a_cpu_need_emulation(release, cpu_vllm):
    code, found, said = release(SERVED, "--dry-run")
    assert code == 3 and [stage for stage, _ in bad(found)] == ["serve"]
    assert "release.serve.emulate=true" in said


def test_the_stages_before_it_can_be_run_alone(release, cpu_vllm):
    code, found, _ = release(SERVED, "--dry-run", "--stop-after", "compare", serve="{gpus: 8xB200}")
    assert code == 0 and not any(row["stage"] == "serve" for row in found["preflight"])


def test_emulation_needs_the_plugin_beside_the_engine(release, cpu_vllm):
    code, found, _ = release(SERVED, "--dry-run", serve="{emulate: true}")
    assert code == 3 and ("serve", "halfbyte is not installed in the engine's environment") in bad(found)


def test_emulated_weights_that_memory_cannot_hold(release, cpu_vllm, monkeypatch):
    monkeypatch.setattr("halfbyte.serve.installed.host_memory_nbytes", lambda: 1000)
    code, found, said = release(SERVED, "--dry-run", serve="{emulate: true}")
    assert code == 3 and any("it does not fit this machine" in here for _, here in bad(found))
    assert "use a server on another machine with --url" in said or "halfbyte is not installed" in said


def test_an_engine_that_is_not_installed(release, monkeypatch):
    monkeypatch.setattr("halfbyte.serve.installed.find_command", lambda _: None)
    code, found, _ = release(SERVED, "--dry-run")
    assert code == 3 and bad(found) == [("serve", "vllm is not installed here")]


def test_a_data_set_of_the_hub_without_a_network_fails_at_once(release):
    named = CALIBRATED.replace(
        "source: data/calibration/articles.jsonl", "source: abisee/cnn_dailymail\n      split: train"
    )
    named = named.replace("data/calibration", str(ROOT / "data" / "calibration"))
    code, found, said = release(UNSERVED, recipe=named)
    assert (code, found["verdict"]) == (3, "INFEASIBLE")
    ((stage, here),) = bad(found)
    assert stage == "quantize" and here.startswith("it is on the Hub, and the Hub cannot be reached")
    assert "--data articles=FILE" in said


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("instructions.jsonl", "nothing.jsonl", "file not found"),
        ("columns: [messages]", "columns: [mesages]", "no column 'mesages'"),
    ],
)
def test_a_data_set_that_is_missing_or_has_other_columns_is_the_recipe_s_fault(release, old, new, words):
    recipe = CALIBRATED.replace("data/calibration", str(ROOT / "data" / "calibration")).replace(old, new)
    code, found, said = release(UNSERVED, recipe=recipe)
    assert code == 2 and words in said and [stage for stage, _ in bad(found)] == ["quantize"]


def test_data_to_compare_on_that_is_missing(release, tmp_path):
    code, found, said = release(UNSERVED.replace("{data}", "{data}.gone.txt"))
    assert code == 2 and "file not found" in said and [stage for stage, _ in bad(found)] == ["compare"]


def test_a_disk_without_room(release, monkeypatch):
    usage = shutil.disk_usage("/")
    monkeypatch.setattr(preflight.shutil, "disk_usage", lambda _: usage._replace(free=10**6))
    code, found, said = release(UNSERVED)
    assert code == 3 and bad(found) == [("quantize", "1.0 MB free")] and "another disk" in said


def test_too_little_memory(release, monkeypatch):
    monkeypatch.setattr(preflight, "memory_facts", lambda: Memory(10**9, 10**6, None))
    code, found, _ = release(UNSERVED)
    assert code == 3 and [stage for stage, _ in bad(found)] == ["quantize"]


def test_a_device_that_is_not_there(release, monkeypatch):
    class NoGpu:
        gpus = ()

    monkeypatch.setattr(preflight, "examine", lambda _: NoGpu)
    code, found, _ = release(UNSERVED, "--device", "cuda")
    assert code == 3
    assert bad(found) == [("quantize", "PyTorch sees no CUDA devices"), ("compare", "PyTorch sees no CUDA devices")]


@pytest.mark.parametrize("words", [(), ("--dry-run",)])
def test_a_remote_source_is_refused_with_the_command_that_fetches_it(release, words):
    code, _, said = release(UNSERVED, *words, source="hf://moonshotai/Kimi-K2.6")
    assert code == 2 and "hf download moonshotai/Kimi-K2.6 --local-dir SRC" in said


def test_publishing_needs_a_token(release):
    code, found, _ = release(UNSERVED + "  publish: {{repo: you/model}}\n")
    assert code == 3 and bad(found) == [("publish", "not logged in to the Hub")]


def test_a_token_does_not_help_without_a_network(release, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_x")
    code, found, _ = release(UNSERVED + "  publish: {{repo: you/model}}\n")
    ((stage, here),) = bad(found)
    assert (code, stage) == (3, "publish") and here.startswith("the Hub cannot be reached")


def test_requests_that_are_longer_than_the_context_are_the_recipe_s_fault(release, cpu_vllm):
    block = SERVED + "  bench: {{shape: ['2k:1k']}}\n"
    code, found, _ = release(block, "--dry-run", serve="{emulate: true, context: 2048}")
    assert code == 2 and any(stage == "bench" and "3,072 tokens" in here for stage, here in bad(found))


def test_a_server_elsewhere_may_start_later_unless_nothing_else_is_left(release, monkeypatch):
    code, found, said = release(SERVED, "--dry-run", "--url", NOWHERE)
    (row,) = [row for row in found["preflight"] if row["needs"] == "the server of --url"]
    assert code == 0 and (row["level"], row["here"]) == ("note", "does not answer yet")
    assert "! probe: the server of --url" in said
    monkeypatch.setattr(Preflight, "_runs", lambda _: ["probe"])
    code, found, _ = release(SERVED, "--dry-run", "--url", NOWHERE)
    assert code == 3 and [stage for stage, _ in bad(found)] == ["probe"]


def test_a_suite_whose_data_is_nowhere(release, tmp_path, cpu_vllm):
    block = SERVED + f"  eval: {{{{suite: mini, against: nothing, data_dir: '{tmp_path}'}}}}\n"
    code, found, _ = release(block, "--dry-run", serve="{emulate: true}")
    here = dict(bad(found))
    assert code == 2 and "which does not exist" in here["eval"]


@pytest.mark.slow
def test_a_suite_of_the_hub_without_a_network(release, cpu_vllm):
    block = SERVED + "  eval: {{suite: kimi-card, against: nothing}}\n"
    code, found, _ = release(block, "--dry-run", serve="{emulate: true}")
    assert code == 3 and "the Hub cannot be reached" in dict(bad(found))["eval"]


def test_gpus_are_counted_by_their_devices(tmp_path, monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    (tmp_path / "dev").mkdir()
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"):
        (tmp_path / "dev" / name).touch()
    assert gpu_count(tmp_path) == 2
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert gpu_count(tmp_path) == 1
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert gpu_count(tmp_path) == 0


def test_the_recipe_is_corrected_before_a_machine_is_looked_for():
    rows = [
        Requirement("serve", "a", "no GPU", "bad", "buy one", 3),
        Requirement("eval", "b", "no task", "bad", "x", 2),
    ]
    error = infeasible(rows, ["quantize", "serve", "eval", "verdict"])
    assert error is not None and error.exit_code == 2 and "eval: b: no task" in error.what
    assert error.fix == "x; --stop-after quantize runs the stages before serve"
    assert infeasible(rows[:0], []) is None


def test_a_gate_that_hardly_any_build_passes_is_the_recipe_s_fault(release, cpu_vllm):
    block = SERVED + "  eval: {{suite: mini-choices, against: source, limit: 20}}\n"

    def gate(wanted):
        code, said, _ = release(block, "--dry-run", "--set", f"release.gates.eval={wanted}")
        (row,) = [row for row in said["preflight"] if "that can be passed" in row["needs"]]
        return code, row

    code, row = gate("accept")
    assert (code, row["level"], row["exit_code"]) == (2, "bad", 2)
    assert "margin 1 pp, 2.0% flips; kimi_mini_mmlu 20 items" in row["here"]
    assert row["fix"] == "raise release.eval.margin or .limit, or set gates.eval to no_regression"
    assert gate("no_regression")[1]["level"] == "good"


@pytest.mark.parametrize(("group", "level"), [("toolz", "bad"), ("tools", "good")])
def test_a_probe_gate_names_groups_that_exist(release, cpu_vllm, group, level):
    block = SERVED.replace("audit: passed", f"audit: passed, probe: {{{{groups: [{group}]}}}}")
    _, said, _ = release(block, "--dry-run")
    (row,) = [row for row in said["preflight"] if row["needs"] == "profile and probes"]
    assert row["level"] == level
    if level == "bad":
        assert (row["here"], row["exit_code"]) == (
            "release.gates.probe names the group 'toolz', which has no selected probe",
            2,
        )
        assert "tools" in row["fix"]
