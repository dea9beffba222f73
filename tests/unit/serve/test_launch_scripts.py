"""Launch scripts run by a shell: words, quotes and variables arrive; only our own files are replaced."""

import json
import os
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from kimi_served import kimi

from halfbyte.errors import UsageError
from halfbyte.serve.gpus import parse_gpus
from halfbyte.serve.launch import engines_for, launch
from halfbyte.serve.launch_facts import LaunchOptions
from halfbyte.serve.render import docker_script, docker_words, files, launch_record, script, write_files
from halfbyte.serve.settings import Note

AWKWARD = 'it\'s a "model" $HOME `id` & more\\ü'
FAKE = """#!/usr/bin/env python3
import json, os, sys
print(json.dumps({"argv": sys.argv, "env": dict(os.environ)}))
"""


@pytest.fixture
def run_script(tmp_path):
    """Run a script with a fake program of the given name that prints its arguments."""

    def run(text, program, *arguments, **environment):
        folder = tmp_path / "bin"
        folder.mkdir(exist_ok=True)
        (folder / program).write_text(FAKE)
        (folder / program).chmod(0o755)
        path = tmp_path / "script.sh"
        path.write_text(text)
        clean = {"PATH": f"{folder}:{os.environ['PATH']}", "HOME": "/nowhere", **environment}
        done = subprocess.run(["bash", path, *arguments], capture_output=True, text=True, check=False, env=clean)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return run


def chosen_launch(machine="8xRTX PRO 6000", served=None, **options):
    return launch(served or kimi("int4"), parse_gpus(machine), LaunchOptions(**options))


@pytest.mark.parametrize(
    ("machine", "engine", "program"),
    [
        ("8xRTX PRO 6000", "vllm", "vllm"),
        ("8xMI355X", "vllm-rocm", "vllm"),
        ("8xB300", "sglang", "sglang"),
        ("8xMI350X", "atom", "python"),
    ],
)
def test_the_script_passes_the_arguments_of_the_launch(run_script, tmp_path, machine, engine, program):
    folder = tmp_path / AWKWARD
    found = chosen_launch(machine, kimi("int4", folder=folder), engine=engine)
    got = run_script(script(found), program)
    assert got["argv"][1:] == found.words[1:]
    assert str(folder) in got["argv"]
    assert {row.flag: str(row.value) for row in found.environment}.items() <= got["env"].items()


def test_model_port_and_more_arguments_can_be_passed_to_the_script(run_script):
    got = run_script(script(chosen_launch()), "vllm", "--seed", "1 2", MODEL="/else where/'m'", PORT="9")
    assert got["argv"][1:3] == ["serve", "/else where/'m'"]
    assert got["argv"][-4:] == ["--port", "9", "--seed", "1 2"]


def test_json_values_arrive_as_one_word(run_script):
    got = run_script(script(chosen_launch(draft="lightseekorg/kimi-k2.6-eagle3-mla")), "vllm")
    words = got["argv"]
    assert json.loads(words[words.index("--speculative-config") + 1])["method"] == "eagle3"


def test_a_name_cannot_leave_its_comment_or_its_quotes(run_script, tmp_path):
    folder = tmp_path / "a\nrm -rf b\n'; echo c"
    found = chosen_launch(served=kimi("int4", folder=folder))
    hostile = replace(found, warnings=(Note("look\nout; $(id)\x1b[2J", "a\rcard"),))
    assert "\x1b" not in script(hostile)  # it would clear the reader's screen
    got = run_script(script(hostile), "vllm")
    assert got["argv"][2] == str(folder)
    assert got["argv"][1:] == found.words[1:]


def test_docker_gets_the_folder_the_cache_and_the_variables(run_script, tmp_path):
    folder = tmp_path / "a model"
    found = chosen_launch(served=kimi("int4", folder=folder), docker=True)
    words = run_script(docker_script(found), "docker")["argv"]
    assert words[1:3] == ["run", "--rm"]
    assert f"{folder}:/model:ro" in words
    assert "halfbyte-jit-cache:/root/.cache" in words
    assert "NCCL_P2P_LEVEL=SYS" in words
    assert "8000:8000" in words
    image = words.index("vllm/vllm-openai:v0.32.0")
    assert words[image + 1] == "/model"
    assert words[image + 2 :] == [*found.words[3:-2], "--host", "0.0.0.0", *found.words[-2:]]


@pytest.mark.parametrize(
    ("machine", "engine"), [("8xB300", "vllm"), ("8xB300", "sglang"), ("8xMI350X", "atom"), ("8xMI355X", "vllm-rocm")]
)
@pytest.mark.parametrize(
    ("host", "published"),
    [(None, ""), ("127.0.0.1", "127.0.0.1:"), ("localhost", "127.0.0.1:"), ("0.0.0.0", ""), ("::1", "[::1]:")],
)
def test_docker_can_be_reached_whatever_the_engine_s_own_host_is(run_script, machine, engine, host, published):
    found = chosen_launch(machine, engine=engine, settings=[f"host={host}"] if host else [])
    words = run_script(docker_script(found), "docker")["argv"][1:]
    assert words[words.index("-p") + 1] == f"{published}{found.port}:{found.port}"
    assert [words[index + 1] for index, word in enumerate(words) if word == "--host"] == ["0.0.0.0"]
    assert ("--host" in found.words) == (host is not None)
    assert docker_words(found)[1:] == words


def test_json_has_the_docker_command_where_there_is_one(tmp_path):
    found = chosen_launch()
    assert launch_record([found]).launches[0].docker == tuple(docker_words(found))
    assert launch_record([chosen_launch(served=kimi("int4", folder=Path("/a:b")))]).launches[0].docker is None
    hub = chosen_launch("8xB300", kimi(), hub="a/b@" + "1" * 40)
    assert docker_words(hub)[docker_words(hub).index("vllm/vllm-openai:v0.32.0") + 1] == "a/b"


def test_docker_of_a_build_and_of_amd(run_script):
    words = run_script(docker_script(chosen_launch("8xB300", kimi(), version="ngc-26.03.post1")), "docker")["argv"]
    assert words[words.index("nvcr.io/nvidia/vllm:26.03.post1-py3") + 1 :][:3] == ["vllm", "serve", "/model"]
    assert "--entrypoint=" in words
    words = run_script(docker_script(chosen_launch("8xMI350X", engine="atom")), "docker")["argv"]
    assert words[words.index("rocm/atom-dev:latest") + 1 :][:4] == [
        "python",
        "-m",
        "atom.entrypoints.openai_server",
        "--model",
    ]
    assert "--device=/dev/kfd" in words


def test_docker_of_a_name_on_the_hub_mounts_nothing(run_script):
    found = chosen_launch("8xB300", kimi(), hub="a/b@" + "1" * 40)
    words = run_script(docker_script(found), "docker")["argv"]
    assert words[words.index("vllm/vllm-openai:v0.32.0") + 1] == "a/b"
    assert not any("/model" in word for word in words)


def test_paths_outside_the_container_are_refused(tmp_path):
    colon = chosen_launch(served=kimi("int4", folder=Path("/a:b")))
    with pytest.raises(UsageError, match="a path with a colon"):
        docker_script(colon)
    assert "docker-run.sh" not in files([colon])
    (tmp_path / "config.json").symlink_to("/elsewhere")
    with pytest.raises(UsageError, match="symlinks that a container cannot follow"):
        docker_script(chosen_launch(served=kimi("int4", folder=tmp_path)))
    with pytest.raises(UsageError, match="the draft's folder is not mounted in the container"):
        docker_script(replace(chosen_launch(), draft=str(tmp_path)))


@pytest.mark.parametrize("machine", ["8xB200", "8xB300", "8xH200", "8xRTX PRO 6000", "8xMI355X"])
def test_scripts_are_valid_and_give_reasons(machine, tmp_path):
    launches = [chosen_launch(machine, engine=name) for name in engines_for(parse_gpus(machine))]
    for name, text in files(launches).items():
        if name.endswith(".json"):
            continue
        assert subprocess.run(["bash", "-n"], input=text, text=True, check=False).returncode == 0, name
        assert "set -euo pipefail" in text
        assert max(map(len, [line for line in text.splitlines() if line.startswith("#")])) <= 120
        lines = [
            line.strip() for line in text.split("arguments=(")[1].split(")\n\nexec")[0].split("\n)\n")[0].splitlines()
        ]
        flags = [index for index, line in enumerate(lines) if line.startswith("-")]
        assert all(lines[index - 1].startswith("#") for index in flags), "a setting without a reason above it"
    assert len(flags) > 3


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="shellcheck is not installed")
@pytest.mark.parametrize("machine", ["8xB300", "8xRTX PRO 6000", "8xMI355X"])
def test_shellcheck_accepts_the_scripts(machine):
    launches = [chosen_launch(machine, engine=name) for name in engines_for(parse_gpus(machine))]
    for name, text in files(launches).items():
        if name.endswith(".sh"):
            done = subprocess.run(["shellcheck", "-"], input=text, text=True, capture_output=True, check=False)
            assert done.returncode == 0, f"{name}: {done.stdout}"


def test_script_files_are_written_and_overwritten(tmp_path):
    found = files([chosen_launch(), chosen_launch(engine="sglang", served=kimi("int4"))])
    written = write_files(tmp_path / "out", found)
    names = ["serve-vllm.sh", "docker-run.sh", "serve-sglang.sh", "docker-run-sglang.sh", "serve.json"]
    assert [path.name for path in written] == names
    assert all(os.access(path, os.X_OK) for path in written[:-1])
    assert json.loads(written[-1].read_text())["launches"][0]["engine"] == "vllm"
    write_files(tmp_path / "out", found)  # ours may be replaced
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == sorted(names)


@pytest.mark.parametrize("length", range(30, 90))
def test_our_scripts_are_recognized_however_their_first_line_wraps(tmp_path, length):
    found = files([chosen_launch(served=kimi("int4", folder=Path("/" + "a" * length)))])
    write_files(tmp_path, found)
    write_files(tmp_path, found)


@pytest.mark.parametrize("name", ["serve-vllm.sh", "serve.json"])
def test_a_foreign_file_is_kept_and_nothing_is_written(tmp_path, name):
    (tmp_path / name).write_text("mine\n")
    with pytest.raises(UsageError, match="halfbyte did not write"):
        write_files(tmp_path, files([chosen_launch()]))
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [(name, "mine\n")]


def test_a_link_is_not_followed(tmp_path):
    (tmp_path / "target").write_text("written by `halfbyte serve`\n")
    (tmp_path / "serve.json").symlink_to(tmp_path / "target")
    with pytest.raises(UsageError, match="halfbyte did not write"):
        write_files(tmp_path, files([chosen_launch()]))
