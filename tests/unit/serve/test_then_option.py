"""What --then takes, and that whatever would fail for what was typed is said before an engine starts."""

import os
from pathlib import Path

import click
import pytest

from halfbyte.cli import cli, run
from halfbyte.errors import UsageError
from halfbyte.serve.then_option import then_commands

ROOT = Path(__file__).parents[3]
HERE = dict(cli.commands)


@pytest.fixture(autouse=True)
def as_in_the_command():
    """Commands keep what they were first read with, such as the names of --help."""
    with click.Context(cli, info_name="halfbyte", **cli.context_settings):
        yield


@click.command()
@click.argument("url")
def probe(url):
    """Only there to be named."""


def test_names_and_commands_with_options():
    with_probe = HERE | {"probe": probe}
    assert then_commands(["probe, bench"], with_probe) == [["probe"], ["bench"]]
    mini = ["eval", "--suite", "mini", "--data-dir", str(ROOT)]
    assert then_commands([" ".join(mini), "bench --concurrency 1,8"], HERE) == [mini, ["bench", "--concurrency", "1,8"]]
    assert then_commands([], HERE) == []


def test_reading_changes_nothing_for_the_engine():
    before = dict(os.environ)
    then_commands([f"eval --suite mini --data-dir {ROOT}"], HERE)
    assert dict(os.environ) == before


@pytest.mark.parametrize(
    ("asked", "what"),
    [
        ("prbe", "this halfbyte has no command 'prbe' that takes a URL"),
        ("audit", "no command 'audit' that takes a URL"),
        ("bench,", "no command ''"),
        ("bench --shpe 1k:1k", "No such option '?--shpe"),
        ("bench --blocks 0", "0 is not in the range"),
        ("bench 'x", "No closing quotation"),
        ("eval --help", "it only prints and asks no server"),
        ("eval --suite nothing", "nothing"),
        ("eval --suite mini --data-dir /", "data"),
    ],
)
def test_what_would_fail_is_said_before_the_start(asked, what, capsys):
    with pytest.raises(UsageError, match=what):
        then_commands([asked], HERE)


def test_nothing_is_started_for_a_check_that_cannot_run(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("halfbyte.serve.run.run_engine", lambda *_, **__: pytest.fail("the engine was started"))
    monkeypatch.chdir(tmp_path)
    code = run(["serve", str(ROOT / "models" / "kimi-mini"), "--run", "--emulate", "--then", "eval --suite nothing"])
    assert code == UsageError.exit_code
    assert "nothing" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
