"""`halfbyte serve` on the command line: output, files, errors, and started processes."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

MINI = Path(__file__).parents[3] / "models" / "kimi-mini"


def test_a_script_is_printed_and_warnings_go_to_stderr(halfbyte):
    code, printed, said = halfbyte("serve", MINI, "--gpus", "4xb200", "--draft", "lightseekorg/kimi-k2.6-eagle3-mla")
    assert code == 0
    assert printed.startswith("#!/usr/bin/env bash\n# Serve kimi-mini with vLLM 0.32.0 on 4xB200")
    assert 'exec vllm serve "$MODEL" "${arguments[@]}" --port "$PORT" "$@"' in printed
    assert "# memory     191.5 GB x 0.9" in printed
    assert "! the draft was trained on the full model" in said
    assert "next: halfbyte serve" in said
    assert subprocess.run(["bash", "-n"], input=printed, text=True, check=False).returncode == 0


def test_docker_and_other_engines(halfbyte):
    assert "exec docker run --rm" in halfbyte("serve", MINI, "--gpus", "1xH200", "--docker")[1]
    assert "exec sglang serve --model-path" in halfbyte("serve", MINI, "--gpus", "1xH200", "--engine", "sglang")[1]
    assert "atom.entrypoints.openai_server" in halfbyte("serve", MINI, "--gpus", "4xMI350X", "--engine", "ATOM")[1]
    build = halfbyte("serve", MINI, "--gpus", "4xB300", "--engine", "vllm==ngc-26.03.post1", "--docker")[1]
    assert "nvcr.io/nvidia/vllm:26.03.post1-py3" in build
    assert "--enforce-eager" in build


def test_json_has_the_command_of_docker(halfbyte):
    launches = json.loads(halfbyte("serve", MINI, "--gpus", "1xH200", "--docker", "--json")[1])["launches"]
    assert all(row["docker"][:3] == ["docker", "run", "--rm"] and row["image"] in row["docker"] for row in launches)


def test_json_has_every_setting_with_its_reason(halfbyte):
    code, printed, said = halfbyte("serve", MINI, "--gpus", "4xMI355X", "--json")
    assert code == 0
    assert "skipped sglang: 4 attention heads over 1 GPUs are 4 per GPU" in said
    launches = json.loads(printed)["launches"]
    assert [row["engine"] for row in launches] == ["vllm-rocm", "atom"]
    for row in launches:
        assert all(one["reason"] and one["source"] for one in row["settings"])
        assert row["fit"]["fits"]
    assert launches[0]["environment"]["VLLM_ROCM_USE_AITER"] == "1"


def test_all_engines_that_can_are_written(halfbyte, tmp_path):
    code, printed, said = halfbyte("serve", MINI, "--gpus", "4xMI355X", "--write", tmp_path / "out")
    assert code == 0
    names = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert names == [
        "docker-run-atom.sh",
        "docker-run.sh",
        "serve-atom.sh",
        "serve-vllm-rocm.sh",
        "serve.json",
    ]
    assert all(name in printed for name in names)
    assert "verdict    it fits" in said
    (tmp_path / "out/serve-mine.sh").write_text("mine\n")
    code, _, said = halfbyte("serve", MINI, "--gpus", "1xB200", "--write", tmp_path / "out")
    assert code == 0
    names = sorted(path.name for path in (tmp_path / "out").iterdir())
    ours = ["docker-run-sglang.sh", "docker-run.sh", "serve-mine.sh", "serve-sglang.sh", "serve-vllm.sh", "serve.json"]
    assert names == ours
    for gone in ("docker-run-atom.sh", "serve-atom.sh", "serve-vllm-rocm.sh"):
        assert f"removed {tmp_path / 'out' / gone}" in said


@pytest.mark.parametrize(
    ("options", "code", "what", "fix"),
    [
        (["--gpus", "8xB2000"], 2, "unknown GPU 'b2000'", "B200"),
        (["--gpus", "A100"], 2, "'A100' has no GPU count", "use 8xA100"),
        ([], 2, "no GPUs specified", "--gpus 8xB200"),
        (["--gpus", "8xB200", "--engine", "trtllm"], 2, "unknown engine 'trtllm'", "vllm"),
        (["--gpus", "8xB200", "--engine", "vllm==0.10"], 2, "vLLM 0.10 is too old for kimi_k25", "0.32.0"),
        (["--gpus", "8xB200", "--tp", "3"], 2, "4 attention heads cannot be split over 3 GPUs", "1, 2, 4"),
        (["--gpus", "4xB200", "--dcp", "3"], 2, "--dcp 3 does not divide the 4 GPUs", "1, 2, 4"),
        (["--gpus", "4xB200", "--context", "5000"], 2, "--context 5,000 exceeds the model's context of 4,096", "4096"),
        (["--gpus", "4xB200", "--set", "moebackend=x"], 2, "vLLM has no setting 'moebackend'", "moe_backend"),
        (["--gpus", "4xB200", "--write", ""], 2, "--write is empty", "--write scripts"),
        (["--gpus", "4xB200", "--write", MINI], 2, "scripts cannot be written next to the weights", "scripts"),
        (["--gpus", "4xB200", "--draft", ""], 2, "'' is neither a folder nor a Hub name", "organization/name"),
        (["--gpus", "4xB200", "--draft", MINI], 2, "not an Eagle3 draft", "organization/name"),
        (["--gpus", "4xB200", "--emulate"], 2, "--emulate requires --run", "add --run"),
        (["--gpus", "4xB200", "--then", "probe"], 2, "--then requires --run", "add --run"),
        (["--run", "--activations", "off"], 2, "--activations requires --emulate", "add --emulate"),
        (["--run", "--then", "probe", "--exec", "true"], 2, "--then and --exec cannot be combined", "one of them"),
        (["--run", "--engine", "vllm==0.30"], 2, "--run uses the installed version", "--engine vllm"),
        (["--run", "--docker"], 2, "not a container", "omit --run or --docker"),
        (["--run", "--set", "host=0.0.0.0"], 2, "--run listens on 127.0.0.1", "omit --run for a script"),
        (["--run", "--write", "x"], 2, "--run starts the engine and writes no scripts", "omit --run or --write"),
        (["--run", "--emulate", "--hub", "a/b"], 2, "--emulate expands the local files", "--hub"),
    ],
)
def test_invalid_options_are_refused(halfbyte, options, code, what, fix):
    got, printed, said = halfbyte("serve", MINI, *options)
    assert (got, printed) == (code, "")
    assert what in said.splitlines()[0]
    assert any(line.strip().startswith("fix") and fix in line for line in said.splitlines())


def test_a_missing_folder_or_config_is_refused(halfbyte, tmp_path):
    code, _, said = halfbyte("serve", tmp_path, "--gpus", "8xB200")
    assert code == 2
    assert "config.json" in said
    code, _, said = halfbyte("serve", "--gpus", "8xB200")
    assert code == 2
    assert "no checkpoint specified" in said


def test_a_launch_that_does_not_fit_exits_with_1(halfbyte, monkeypatch):
    from halfbyte.serve import gpus

    small = {name: gpus.replace(row, memory_nbytes=10**9) for name, row in gpus.known_gpus().items()}
    monkeypatch.setattr(gpus, "known_gpus", lambda: small)
    code, printed, said = halfbyte("serve", MINI, "--gpus", "1xB200")
    assert (code, printed) == (1, "")
    assert "it does not fit on 1xB200" in said
    assert "fix" in said


FAKE_VLLM = """#!{python}
import http.server, json, os, sys
if sys.argv[1] == "--version":
    sys.exit(print("{version}"))
with open({notes!r}, "w") as file:
    json.dump({{"argv": sys.argv, "env": dict(os.environ)}}, file)
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers()
    def log_message(self, *_): pass
port = int(sys.argv[sys.argv.index("--port") + 1])
http.server.HTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""


@pytest.fixture
def fake_vllm(tmp_path, monkeypatch):
    """Install a program that answers like vLLM's server and records its command line."""

    def install(version="0.32.0+cpu"):
        path = tmp_path / "bin" / "vllm"
        path.parent.mkdir()
        notes = tmp_path / "started.json"
        path.write_text(FAKE_VLLM.format(python=sys.executable, version=version, notes=str(notes)))
        path.chmod(0o755)
        monkeypatch.setenv("HALFBYTE_VLLM_BIN", str(path))
        return notes

    return install


def test_run_starts_the_installed_engine_with_the_chosen_settings(halfbyte, fake_vllm, tmp_path):
    notes = fake_vllm()
    out = tmp_path / "url"
    shell = f'echo "$HALFBYTE_URL $HALFBYTE_MODEL" > {out}'
    options = ["--run", "--emulate", "--activations", "off", "--exec", shell, "--log", tmp_path / "log"]
    code, _, said = halfbyte("serve", MINI, *options)
    assert code == 0, said
    started = json.loads(notes.read_text())
    words = started["argv"]
    assert words[1:3] == ["serve", str(MINI)]
    for flag, value in (("--quantization", "halfbyte_emulate"), ("--dtype", "float32"), ("--host", "127.0.0.1"),
                        ("--attention-backend", "CPU_MLA"), ("--max-model-len", "4096")):  # fmt: skip
        assert words[words.index(flag) + 1] == value
    assert started["env"]["HALFBYTE_EMULATE_ACTIVATIONS"] == "off"
    assert started["env"]["VLLM_CPU_KVCACHE_SPACE"] == "1"
    port = words[words.index("--port") + 1]
    assert out.read_text() == f"http://127.0.0.1:{port} kimi-mini\n"


def test_run_with_a_guard_uses_the_guards_port_and_gives_the_engine_another(halfbyte, fake_vllm, tmp_path):
    pytest.importorskip("aiohttp")
    notes, out = fake_vllm(), tmp_path / "url"
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        free = listener.getsockname()[1]
    asks = "import os, urllib.request; urllib.request.urlopen(os.environ['HALFBYTE_URL'])"
    shell = f'echo "$HALFBYTE_URL" > {out}; {sys.executable} -c "{asks}"'
    options = ["--run", "--emulate", "--guard", "--port", free, "--exec", shell, "--log", tmp_path / "log"]
    code, _, said = halfbyte("serve", MINI, *options)
    assert code == 0, said
    words = json.loads(notes.read_text())["argv"]
    assert out.read_text() == f"http://127.0.0.1:{free}\n"
    assert words[words.index("--port") + 1] != str(free)


def test_run_returns_the_exit_code_of_the_engine(halfbyte, fake_vllm, tmp_path):
    fake_vllm()
    code, _, _ = halfbyte("serve", MINI, "--run", "--emulate", "--exec", "exit 7", "--log", tmp_path / "log")
    assert code == 7


def test_run_works_where_a_thousand_files_are_open(halfbyte, fake_vllm, tmp_path):
    fake_vllm()
    opened = [os.open("/dev/null", os.O_RDONLY) for _ in range(1_100)]
    try:
        code, _, _ = halfbyte("serve", MINI, "--run", "--emulate", "--exec", "exit 7", "--log", tmp_path / "log")
    finally:
        for descriptor in opened:
            os.close(descriptor)
    assert code == 7


def test_an_unwritable_log_is_refused_before_the_start(halfbyte, fake_vllm, tmp_path):
    notes = fake_vllm()
    code, _, said = halfbyte("serve", MINI, "--run", "--emulate", "--exec", "true", "--log", tmp_path)
    assert (code, notes.exists()) == (2, False)
    assert "the log must be a file" in said
    assert "starting http" not in said


def test_run_without_emulation_on_a_cpu_names_the_option(halfbyte, fake_vllm):
    fake_vllm()
    code, _, said = halfbyte("serve", MINI, "--run")
    assert code == 2
    assert "no kernel for 4-bit experts on a CPU" in said
    assert "--emulate" in said


def test_run_on_a_cpu_checks_memory_first(halfbyte, fake_vllm, monkeypatch):
    from halfbyte.serve import installed

    notes = fake_vllm()
    monkeypatch.setattr(installed, "host_memory_nbytes", lambda: 10**6)
    code, printed, said = halfbyte("serve", MINI, "--run", "--emulate", "--exec", "true")
    assert (code, printed, notes.exists()) == (1, "", False)
    assert "it does not fit this machine: the weights expanded to BF16 need" in said.splitlines()[0]


def test_run_needs_gpus_and_a_supported_version(halfbyte, fake_vllm):
    fake_vllm("0.14.0")
    code, _, said = halfbyte("serve", MINI, "--run")
    assert code == 2
    assert "no GPUs specified" in said
    code, _, said = halfbyte("serve", MINI, "--run", "--gpus", "1xH200")
    assert code == 2
    assert "vLLM 0.14.0 is too old for kimi_k25" in said


@pytest.mark.parametrize(
    ("options", "what"),
    [
        (["--gpus", "8xB200"], "the installed vllm 0.32.0+cpu runs on the CPU"),
        (["--gpus", "nonsense"], "'nonsense' is not a valid number and kind of GPUs"),
        (["--engine", "vllm-rocm"], "the installed vllm 0.32.0+cpu is vllm, not vllm-rocm"),
        (["--engine", "atom"], "--run does not support atom"),
        (["--then", "audit"], "'audit' is not a command that takes a URL"),
    ],
)
def test_run_refuses_options_without_effect(halfbyte, fake_vllm, tmp_path, monkeypatch, options, what):
    notes = fake_vllm()
    monkeypatch.chdir(tmp_path)
    code, printed, said = halfbyte("serve", MINI, "--run", "--emulate", *options)
    assert (code, printed) == (2, "")
    assert what in said.splitlines()[0]
    assert not notes.exists()
    assert not (tmp_path / "serve.log").exists()


@pytest.mark.parametrize(
    ("options", "offline"),
    [
        (["--hub", "org/name"], None),
        (["--draft", "org/mla-draft"], None),
        (["--draft", "."], "1"),
        ([], "1"),
    ],
)
def test_run_is_offline_unless_something_is_on_the_hub(halfbyte, fake_vllm, tmp_path, monkeypatch, options, offline):
    from halfbyte.serve import launch_facts

    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setattr(launch_facts, "draft_of", lambda _folder: launch_facts.eagle3_mla())
    monkeypatch.setattr(launch_facts, "_parts_of_draft", lambda _folder: {"fc", "kv_a_proj_with_mqa"})
    notes = fake_vllm("0.32.0")
    monkeypatch.chdir(tmp_path)
    code, _, said = halfbyte("serve", MINI, "--run", "--gpus", "1xB200", "--exec", "true", *options)
    assert code == 0, said
    assert json.loads(notes.read_text())["env"].get("HF_HUB_OFFLINE") == offline


def test_help_names_only_commands_that_exist(halfbyte):
    from halfbyte.cli.main import cli
    from halfbyte.options.serve import URL_COMMANDS

    text = " ".join(halfbyte("serve", "--help")[1].split())
    assert cli.commands.keys() >= set(URL_COMMANDS)
    here = ", ".join(URL_COMMANDS)
    assert f"--then NAME,... With --run: commands to run once the server is ready ({here})." in text


def test_run_does_not_overwrite_another_file_with_its_log(halfbyte, fake_vllm, tmp_path):
    notes = fake_vllm()
    precious = tmp_path / "config.json"
    precious.write_text("{}")
    code, _, said = halfbyte("serve", MINI, "--run", "--emulate", "--exec", "true", "--log", precious)
    assert (code, precious.read_text(), notes.exists()) == (2, "{}", False)
    assert "this file is not a log of halfbyte" in said
