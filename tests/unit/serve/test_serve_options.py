"""Options of `halfbyte serve` without effect or with a misleading effect are rejected."""

import pytest
from ignore_list import with_ignore_list
from kimi_served import kimi

from halfbyte.errors import UsageError
from halfbyte.serve.gpus import parse_gpus
from halfbyte.serve.launch import launch
from halfbyte.serve.launch_facts import LaunchOptions
from halfbyte.serve.render import docker_script


@pytest.mark.parametrize(
    ("options", "what"),
    [
        (["OUT"], "OUT has no effect with --like"),
        (["--gpus", "8xB200"], "--gpus has no effect with --like"),
        (["--context", "4096"], "--context has no effect with --like"),
        (["--run"], "--run has no effect with --like"),
        (["--set", "host=::1"], "--set has no effect with --like"),
    ],
)
def test_like_excludes_other_options(halfbyte, options, what):
    assert halfbyte("serve", "--like", "wafer-k2.6-nvfp4", "--json")[0] == 0
    code, printed, said = halfbyte("serve", "--like", "wafer-k2.6-nvfp4", *options)
    assert (code, printed) == (2, "")
    assert what in said
    code, printed, said = halfbyte("serve", "--like", "nvidia", *options)
    assert (code, printed) == (2, "")
    assert "unknown published command 'nvidia'" in said
    assert "has no effect with --like" not in said


@pytest.mark.parametrize("empty", ["", "  "])
def test_an_exec_without_a_command(halfbyte, pico, empty):
    code, _, said = halfbyte("serve", pico("bf16"), "--run", "--exec", empty)
    assert (code, "--exec is empty" in said) == (2, True)


def test_unknown_engines_and_engines_that_cannot_run_are_refused(halfbyte, pico):
    folder = pico("bf16")
    assert "unknown engine 'vlm'" in halfbyte("serve", folder, "--run", "--engine", "vlm")[2]
    assert "--run does not support atom" in halfbyte("serve", folder, "--run", "--engine", "atom")[2]


@pytest.mark.parametrize(
    ("option", "fix"),
    [
        ("--set", "see 'halfbyte serve --help'"),
        ("--write", "see 'halfbyte serve --help'"),
        ("--gpus", "use one of 8xB200, "),
    ],
)
def test_an_option_without_its_value_names_the_command_or_the_values(halfbyte, option, fix):
    code, _, said = halfbyte("serve", "somewhere", option)
    assert code == 2
    assert fix in said


@pytest.mark.parametrize("below", ["halfbyte", "halfbyte/scripts"])
def test_scripts_are_not_written_next_to_the_plan(halfbyte, pico, below):
    folder = pico("bf16")
    code, _, said = halfbyte("serve", folder, "--gpus", "1xB200", "--write", folder / below)
    assert code == 2
    assert "halfbyte/ is reserved for the checkpoint's evidence" in said
    assert not (folder / "halfbyte").exists()


def test_scripts_for_the_card_have_one_folder(halfbyte, pico):
    folder = with_ignore_list(pico("nvfp4"))
    assert halfbyte("serve", folder, "--gpus", "1xB200", "--write", folder / "halfbyte/serve")[0] == 0
    assert (folder / "halfbyte/serve/serve.json").is_file()


def test_a_folder_that_starts_with_a_dash(halfbyte, pico, tmp_path, monkeypatch):
    folder = with_ignore_list(pico("nvfp4")).rename(tmp_path / "-dash")
    code, printed, said = halfbyte("serve", folder, "--gpus", "1xB200")
    assert code == 0
    assert "--served-model-name dash\n" in printed
    monkeypatch.chdir(tmp_path)
    code, _, said = halfbyte("serve", "--gpus", "1xB200", "--", "-dash")
    assert code == 0
    assert "halfbyte audit ./-dash" in said
    assert "next: halfbyte serve ./-dash" in said


@pytest.mark.parametrize(("host", "fine"), [("10.0.0.1", True), ("localhost", True), ("gpu-box.lan", False)])
def test_docker_publishes_at_numbers(host, fine):
    made = launch(kimi(), parse_gpus("8xB200"), LaunchOptions(settings=(f"host={host}",)))
    if fine:
        assert "-p " in docker_script(made)
    else:
        with pytest.raises(UsageError, match="docker needs an IP address"):
            docker_script(made)
