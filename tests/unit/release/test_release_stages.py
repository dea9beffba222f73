"""The stages of a release as data: each is a command that can be pasted, for any folder name."""

import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import get_args

import click
import pytest
from pico import write_pico

import halfbyte
from halfbyte.cli.main import cli
from halfbyte.options.release import StageName
from halfbyte.release.stages import HALFBYTE, OUT, PROVENANCE, SOURCE, URL, VERDICT, ReleaseRequest, make_stages, shown

BLOCK = {
    "audit": {"sample": 2, "engine": "vllm"},
    "loops": {"prompts": 2, "tokens": 8},
    "compare": {"data": ["a=a.jsonl"], "samples": 4, "length": 8, "activations": "as-served", "kv": "fp8"},
    "scripts": {"gpus": "8xB200", "engine": "vllm", "context": 64},
    "serve": {"emulate": True, "activations": "on", "context": 64, "settings": ["max-num-seqs=4"]},
    "probe": {"profile": "mini", "budget": "10s", "only": ["json"], "skip": ["math"]},
    "eval": {"suite": "mini", "against": "source", "limit": 4, "margin": 0.02, "data_dir": "."},
    "bench": {"shape": ["8:8"], "blocks": 1, "concurrency": [1, 2], "trust_remote_code": True},
    "gates": {"audit": "passed"},
    "provenance": True, "card": True, "report": True, "publish": {"repo": "org/name", "private": True},
}  # fmt: skip
KINDS = {OUT: "OUT", SOURCE: "SRC", URL: "http://127.0.0.1:8000"}
STAGES = {
    stage.name: stage for stage in make_stages(ReleaseRequest(recipe="kimi-k2.6-nvfp4a16", block=BLOCK, force=True))
}


def parses(words: list[str]) -> None:
    """Parse a `halfbyte` command with click, without running it."""
    assert words[0] == "halfbyte"
    command = cli.commands[words[1]]
    found = command.make_context(words[1], words[2:], parent=click.Context(cli))
    for then in found.params.get("then") or ():
        parses(["halfbyte", *shlex.split(then), *([] if "http" in then else ["URL"])])


@pytest.mark.parametrize("name", [name for name in STAGES if name not in (VERDICT, "provenance")])
def test_every_recorded_command_is_one_that_halfbyte_reads(name):
    parses(STAGES[name].typed_command(KINDS))


def test_the_card_is_told_the_repository_that_is_published_to_and_what_the_recipe_says():
    assert STAGES["card"].words == ("card", OUT, "--repo", "org/name")
    block = {"gates": {"audit": "passed"}, "card": {"name": "kimi-mini-NVFP4", "quantized_by": "me"}}
    card = make_stages(ReleaseRequest(recipe="kimi-k2.6-nvfp4a16", block=block))[-1]
    assert card.words == ("card", OUT, "--name", "kimi-mini-NVFP4", "--quantized-by", "me")
    parses(card.typed_command(KINDS))


def test_every_kind_of_stage_is_here():
    assert set(STAGES) == set(get_args(StageName))


def test_the_verdict_is_no_command():
    assert (STAGES[VERDICT].typed_command(KINDS), shown(STAGES[VERDICT], KINDS)) == ([], "")


def test_the_command_that_writes_provenance_can_be_pasted(tmp_path):
    source = write_pico(tmp_path / "source")
    stage = STAGES["provenance"]
    words = stage.typed_command({OUT: str(tmp_path / "out"), SOURCE: str(source)})
    assert words[0] == "python"
    here = {"PYTHONPATH": str(Path(halfbyte.__file__).parents[1]), "PATH": "/usr/bin:/bin"}
    done = subprocess.run([sys.executable, *words[1:]], capture_output=True, text=True, env=here, check=False)
    assert (done.returncode, "no finished checkpoint in this folder" in done.stderr) == (2, True), done.stderr
    done = subprocess.run([sys.executable, *words[1:-1]], capture_output=True, text=True, env=here, check=False)
    assert (done.returncode, "expected two folders, got 1" in done.stderr) == (2, True), done.stderr


def test_a_folder_that_is_named_like_a_mark_stays_what_it_is():
    places = {OUT: "/x/<source>", SOURCE: "/y/<url>", URL: "URL"}
    assert STAGES["audit"].command(places)[:4] == ["audit", "/x/<source>", "--against", "/y/<url>"]
    assert shown(STAGES["audit"], places).startswith("halfbyte audit '/x/<source>' --against '/y/<url>'")


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.10 has no -P")
@pytest.mark.parametrize("program", [HALFBYTE, PROVENANCE])
def test_a_stage_runs_no_module_of_the_folder_it_is_started_in(tmp_path, program):
    canary = tmp_path / "canary"
    planted = f"open({str(canary)!r}, 'w').close()\n"
    for name in ("halfbyte", "click", "json"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(planted)
    bare = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}
    environment = {**bare, "PYTHONPATH": str(Path(halfbyte.__file__).parents[1])}
    words = [] if program == PROVENANCE else ["--version"]
    done = subprocess.run(
        [*program, *words], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == (2 if program == PROVENANCE else 0), done.stderr
    assert not canary.exists()
