"""vLLM's own parser accepts every vLLM command that `halfbyte serve` can produce, choices included."""

import itertools
import json
import sys
from pathlib import Path

import pytest

from halfbyte.errors import CheckFailedError, UsageError
from halfbyte.serve.gpus import parse_gpus
from halfbyte.serve.launch import CPU, launch
from halfbyte.serve.launch_data import engines, publications
from halfbyte.serve.launch_facts import LaunchOptions
from halfbyte.serve.published import words_of

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "unit" / "serve"))
from kimi_served import kimi  # noqa: E402

MACHINES = ("8xB200", "8xB300", "4xGB200", "8xH200", "8xRTX PRO 6000", "8xMI350X", "8xMI355X")
FORMATS = ("nvfp4", "mxfp4", "int4")
OPTIONS = (
    {},
    {"draft": "auto"},
    {"ep": True, "concurrency": 2},
    {"dcp": 2, "context": 65_536},
    {"text_only": True, "docker": True},
    {"settings": ["moe_backend=emulation", "enforce_eager=true", "kv_cache_dtype=auto"]},
    {"hub": "organisation/name@" + "a" * 40},
    {"emulate": True},
)
COMMIT = "0" * 40

# What vLLM 0.32 does not know, in commands that were published for other builds, and why it stands there.
ELSEWHERE = {
    "draft_kv_cache_dtype": "0xSero's build 0.19.2rc1 spells the draft's cache so; 0.32 says kv_cache_dtype inside it",
}


def commands():
    """All launches of the matrix, with their options."""
    made = {}
    for machine, format, options, experts in itertools.product(MACHINES, FORMATS, OPTIONS, (384, 192)):
        gpus = parse_gpus(machine)
        name = "vllm-rocm" if gpus.vendor == "amd" else "vllm"
        served = kimi(format, experts=experts, remote_tokenizer="hub" in options, revision=COMMIT)
        try:
            made[machine, format, str(options), experts] = launch(
                served, gpus, LaunchOptions(engine=name, **options)
            ).words
        except (UsageError, CheckFailedError):
            continue
    for emulate in (None, "on", "off"):
        options = LaunchOptions(emulate=emulate is not None, activations=emulate)
        made["cpu", emulate] = launch(kimi("bf16" if emulate is None else "nvfp4"), CPU, options).words
    return made


@pytest.fixture(scope="module")
def parsed(in_vllm, tmp_path_factory):
    """The commands, the published ones, some wrong ones, and vLLM's result for each."""
    asked = {**commands(), **published(), **WRONG}
    file = tmp_path_factory.mktemp("commands") / "commands.json"
    file.write_text(json.dumps([words[1:] for words in asked.values()]))
    said = json.loads(in_vllm(HERE / "parse_commands.py", file).splitlines()[-1])  # vLLM may print before it
    names = list(asked)
    return {names[int(index)]: problem for index, problem in said.items()}, names


def published():
    """The published vLLM commands in the form of `vllm serve`."""
    found = {}
    for name, row in publications().items():
        if row.engine != "vllm":
            continue
        words = words_of(row.command)
        if "--model" in words:
            start = words.index("--model")
            found[name] = ["vllm", "serve", *words[start + 1 :]]
        else:
            found[name] = words[words.index("serve") - 1 :]
    return found


WRONG = {
    "flag": ["vllm", "serve", "/m", "--no-such-flag"],
    "moe": ["vllm", "serve", "/m", "--moe-backend", "nope"],
    "attention": ["vllm", "serve", "/m", "--attention-backend", "NOPE"],
    "cache": ["vllm", "serve", "/m", "--kv-cache-dtype", "fp5"],
    "parser": ["vllm", "serve", "/m", "--reasoning-parser", "kimi_k9"],
    "draft": ["vllm", "serve", "/m", "--speculative-config", '{"model":"x","nope":1}'],
    "config": ["vllm", "serve", "/m", "--attention-config", '{"nope":true}'],
}


def test_every_command_is_one_that_vllm_takes(parsed):
    problems, names = parsed
    ours = [name for name in names if isinstance(name, tuple)]
    assert len(ours) > 150
    assert {name[0] for name in ours} == {*MACHINES, "cpu"}
    assert {name: problems[name] for name in ours if name in problems} == {}


def test_a_wrong_command_would_be_noticed(parsed):
    problems, _ = parsed
    assert set(WRONG) <= set(problems)


def test_published_commands_are_taken_but_for_what_is_listed(parsed):
    problems, names = parsed
    assert {"wafer-k2.6-nvfp4", "decart-k2.7-code-nvfp4", "0xsero-k2.6-keep192"} <= set(names)
    found = {name: problem for name, problem in problems.items() if name in publications()}
    assert list(found) == ["0xsero-k2.6-keep192"]
    assert all(any(word in problem for word in ELSEWHERE) for problem in found.values())


def test_the_version_that_is_meant_is_the_one_that_parses():
    from importlib.metadata import version

    assert version("vllm").partition("+")[0] == engines()["vllm"].version == engines()["vllm-rocm"].version
