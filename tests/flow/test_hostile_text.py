"""Untrusted text on every path to a terminal or file: arguments, file names, configs, messages of libraries."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from attacks.bounds import check_answer
from pico import write_pico
from release_folder import copy_folder, make_folder, skip_probes

from halfbyte.publish.provenance import write_provenance
from halfbyte.serve.engine_log import clean
from halfbyte.ui.console import Column, Output

ACTS = "\x1b[2J\x9b31m\u202e\x07\r\n✗ all is well"
RECIPE = "kimi-k2.6-nvfp4a16"
R = ("-r", RECIPE)

# Errors of click, our own options, recipes, addresses and readers about invalid values.
ARGUMENTS = [
    (ACTS,), (f"-{ACTS}",), ("--json", ACTS), ("inspect", f"--no-{ACTS}"), ("inspect", ACTS), ("inspect", ".", ACTS),
    ("inspect", "--example", ACTS), ("inspect", f"hf://{ACTS}"), ("inspect", f"zz{ACTS}://x"), ("encode", ACTS),
    ("decode", ACTS, ACTS), ("formats", ACTS), ("doctor", ACTS), ("recipes", "show", ACTS), ("status", ACTS),
    ("verify", ACTS), ("loops", ACTS), ("diff", ACTS, ACTS), ("audit", ACTS, "--engine", ACTS), ("card", ".", ACTS),
    ("quantize", ACTS, ACTS, "-r", ACTS), ("quantize", "a", "b", *R, "--samples", ACTS), ("quantize", "a", "b", *R,
    "--set", ACTS), ("quantize", "a", "b", *R, "--set", f"quantize.{ACTS}={ACTS}"), ("quantize", "a", "b", *R,
    "--device", ACTS), ("quantize", "a", "b", *R, "--data", ACTS), ("release", "a", "b", *R, "--again", ACTS),
    ("serve", ".", "--gpus", ACTS), ("serve", "--guard", ACTS), ("probe", ACTS), ("probe", f"http://{ACTS}"),
    ("bench", "http://x", "--concurrency", ACTS), ("bench", "http://x", "--shape", ACTS), ("eval", "http://x",
    "--suite", ACTS), ("prune", ".", "b", "--keep", ACTS), ("prune", ".", "b", "--drop", ACTS), ("plan", ".", *R,
    "--fit", ACTS), ("publish", ".", ACTS), ("compare", ACTS, ACTS, "--data", ACTS),
]  # fmt: skip


@pytest.mark.parametrize("argv", ARGUMENTS, ids=lambda argv: " ".join(argv).split("\x1b")[0].strip() or "nothing")
def test_arguments(halfbyte, tmp_path, monkeypatch, argv):
    monkeypatch.chdir(tmp_path)
    code, printed, words = halfbyte(*argv)
    check_answer(code, printed, words)
    assert code == 2


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return make_folder(tmp_path_factory.mktemp("made"))


def test_names_of_files_that_are_no_text(halfbyte, made, tmp_path, monkeypatch):
    """Linux file names are bytes: such a name is recorded, escaped, and found again."""
    skip_probes(monkeypatch)
    source, out = copy_folder(made, tmp_path)
    name = os.fsdecode(b"n\xff\x1b[2J\n\xe2\x9c\x97 all is well\xe2\x80\xae.txt")
    (out / name).write_text("x")
    (out / "halfbyte" / f"{name}.json").write_text("{}")
    record = json.loads(write_provenance(out, source).read_text())
    assert {name} <= set(record["outputs"])
    assert {f"halfbyte/{name}.json"} <= set(record["evidence"])
    for argv in (("verify", out), ("verify", out, "--json"), ("publish", out, "a/b", "--dry-run"), ("audit", out)):
        code, printed, words = halfbyte(*argv)
        check_answer(code, printed, words)
        assert code == (1 if argv[0] == "publish" else 0)  # the Hub has names of UTF-8 only
    (out / name).write_text("y")
    code, printed, words = halfbyte("verify", out)
    check_answer(code, printed, words)
    assert code == 1
    assert "all is well" in printed


def test_half_a_surrogate_pair_in_a_config(halfbyte, tmp_path):
    source = write_pico(tmp_path / "source")
    path = source / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "note": "\ud800"}))
    code, printed, words = halfbyte("quantize", source, tmp_path / "out", *R)
    check_answer(code, printed, words)
    assert code == 0
    assert json.loads((tmp_path / "out/config.json").read_bytes())["note"] == "\ud800"


def test_words_of_libraries():
    """Warnings and logs of libraries contain names they read, and Python prints them itself."""
    program = (
        "import logging, sys, warnings\n"
        "import halfbyte.cli.main as cli\n"
        "def run(argv):\n"
        f"    warnings.warn({ACTS!r})\n"
        f"    logging.getLogger('somebody').warning('read %s', {ACTS!r})\n"
        "    return 0\n"
        "cli.run = run\n"
        "cli.main([])\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "src")}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("\\x1b[2J") == 2
    check_answer(0, done.stdout, done.stderr.replace("\n✗", "✗"))


def test_rows_of_tables(capsys):
    Output().table([{"name": f"x{ACTS}"}, {"name": "y"}], (Column("name", "name"),))
    printed = capsys.readouterr()
    check_answer(0, printed.out, printed.err)
    assert len(printed.out.splitlines()) == 3  # a heading and two rows


def test_lines_of_a_server():
    assert clean(f"a{ACTS}b\ud800") == "a✗ all is wellb"
