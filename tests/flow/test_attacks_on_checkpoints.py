"""The attack corpus on a checkpoint's files, through every command that reads them."""

import shutil

import pytest
from attacks.bounds import run_bounded
from attacks.files import FILES
from attacks.headers import HEADERS
from attacks.indices import INDICES, shards
from pico import write_pico

from halfbyte.cli import main as cli

RECIPE = "kimi-k2.6-mxfp4-wafer"
# What can be left out of a checkpoint or be anything: then commands may well end with 0.
CONFIG, INDEX = "config.json", "model.safetensors.index.json"


@pytest.fixture(scope="module")
def pristine(tmp_path_factory):
    """A checkpoint on which every command has run once, so that imports are not measured."""
    folder = tmp_path_factory.mktemp("pristine")
    source = write_pico(folder / "source")
    for command in commands(source, source, folder / "out"):
        cli.run([str(word) for word in command])
    return write_pico(folder / "again")


@pytest.fixture
def source(pristine, tmp_path):
    return shutil.copytree(pristine, tmp_path / "source")


def commands(source, pristine, out):
    """Every command that opens a checkpoint."""
    return [
        ("inspect", source),
        ("inspect", source, "--tensors", "*"),
        ("plan", source, "-r", RECIPE, "--no-measure"),
        ("quantize", source, out, "-r", RECIPE),
        ("audit", source),
        ("diff", source, pristine),
        ("diff", pristine, source),
        ("verify", source),
        ("serve", source, "--gpus", "8xB200"),
        ("card", source),
        ("report", source),
        ("loops", source),
        ("compare", source, pristine, "--data", "general=README.md"),
    ]


def refused_everywhere(halfbyte, source, pristine, tmp_path, *, large=False):
    """Run all commands (only the first on slow inputs) and check that each rejects the input and writes nothing."""
    for number, command in enumerate(commands(source, pristine, tmp_path / "out")[: 1 if large else None]):
        code, _, _ = run_bounded(halfbyte, *command)
        assert code != 0 or number > 1, command
    assert not list(tmp_path.glob("out/*.safetensors"))


@pytest.mark.parametrize("attack", HEADERS)
def test_a_hostile_header(halfbyte, source, pristine, tmp_path, attack):
    HEADERS[attack](source / shards(source)[1])
    refused_everywhere(halfbyte, source, pristine, tmp_path, large="100_mb_of" in attack)


@pytest.mark.parametrize("attack", [name for name in INDICES if not name.startswith("total_")])
def test_a_hostile_index(halfbyte, source, pristine, tmp_path, attack):
    INDICES[attack](source)
    refused_everywhere(halfbyte, source, pristine, tmp_path)


@pytest.mark.parametrize("attack", [name for name in INDICES if name.startswith("total_")])
def test_a_hostile_total(halfbyte, source, pristine, tmp_path, attack):
    INDICES[attack](source)
    for command in commands(source, pristine, tmp_path / "out"):
        run_bounded(halfbyte, *command)


NOT_FOR_SHARDS = ("every_value", "doubled_keys")  # a shard is not JSON
KINDS = [
    (attack, file)
    for attack in FILES
    for file in (INDEX, CONFIG, "shard")
    if file != "shard" or not attack.startswith(NOT_FOR_SHARDS)
]


@pytest.mark.parametrize(("attack", "file"), KINDS)
def test_a_hostile_file(halfbyte, source, pristine, tmp_path, file, attack):
    if file == "shard":
        file = shards(source)[1]
    FILES[attack](source / file)
    for command in commands(source, pristine, tmp_path / "out"):
        run_bounded(halfbyte, *command)
