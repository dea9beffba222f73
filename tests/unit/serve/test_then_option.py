"""Values of --then, and errors that are reported before an engine starts."""

import os
from pathlib import Path

import click
import pytest

from halfbyte.cli.main import cli, run
from halfbyte.cli.serve import then_commands
from halfbyte.errors import UsageError

ROOT = Path(__file__).parents[3]
HERE = dict(cli.commands)


@pytest.fixture(autouse=True)
def as_in_the_command():
    """Reset commands, which keep state from their first parsing, such as the names of --help."""
    with click.Context(cli, info_name="halfbyte", **cli.context_settings):
        yield


@click.command()
@click.argument("url")
def probe(url):
    """A placeholder command."""


def test_names_and_commands_with_options():
    with_probe = HERE | {"probe": probe}
    assert then_commands(["probe, bench"], with_probe) == [["probe"], ["bench"]]
    mini = ["eval", "--suite", "mini", "--data-dir", str(ROOT)]
    assert then_commands([" ".join(mini), "bench --concurrency 1,8"], HERE) == [mini, ["bench", "--concurrency", "1,8"]]
    assert then_commands([], HERE) == []


def test_parsing_then_does_not_change_the_engine():
    before = dict(os.environ)
    then_commands([f"eval --suite mini --data-dir {ROOT}"], HERE)
    assert dict(os.environ) == before


@pytest.mark.parametrize(
    ("asked", "what"),
    [
        ("prbe", "'prbe' is not a command that takes a URL"),
        ("audit", "'audit' is not a command that takes a URL"),
        ("bench,", "'' is not a command that takes a URL"),
        ("bench --shpe 1k:1k", "No such option '?--shpe"),
        ("bench --blocks 0", "0 is not in the range"),
        ("bench 'x", "No closing quotation"),
        ("eval --help", "this command does not use a server"),
        ("eval --suite nothing", "nothing"),
        ("eval --suite mini --data-dir /", "data"),
    ],
)
def test_then_commands_that_would_fail_are_refused_before_the_start(asked, what, capsys):
    with pytest.raises(UsageError, match=what):
        then_commands([asked], HERE)


def test_nothing_is_started_for_a_check_that_cannot_run(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("halfbyte.serve.run.run_engine", lambda *_, **__: pytest.fail("the engine was started"))
    monkeypatch.chdir(tmp_path)
    code = run(["serve", str(ROOT / "models" / "kimi-mini"), "--run", "--emulate", "--then", "eval --suite nothing"])
    assert code == UsageError.exit_code
    assert "nothing" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
