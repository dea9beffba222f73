"""The pages in docs/: commands run or parse, quoted messages exist in the source, anchors are valid."""

import ast
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import click
import pytest
import yaml

from halfbyte import api
from halfbyte.cli.main import cli

ROOT = Path(__file__).parents[2]
WRITTEN_BY_PROGRAMS = ("cli.md", "serve-differences.md")  # the second has commands of other engines
NAMES = sorted(path.name for path in (ROOT / "docs").glob("*.md") if path.name not in WRITTEN_BY_PROGRAMS)
# Linked into the folder in which a page's commands run; they may write there.
THERE = ("models", "data", "examples", "evals", "LICENSE")
HOLE = "…"  # the variable part of a message


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", (ROOT / "docs" / page).read_text(), re.MULTILINE | re.DOTALL)


def commands(text: str) -> Iterator[list[str]]:
    """Yield the words of each halfbyte command of a block, without comments, pipes and redirections."""
    for line in text.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        if words[:1] == ["halfbyte"]:
            end = next((place for place, word in enumerate(words) if word in ("|", ">", "&&")), len(words))
            yield words[1:end]


def refuse_unknown_options(words: list[str]) -> None:
    """Parse a command with click, including option types, without running it."""
    command: click.Command = cli
    context = click.Context(cli, info_name="halfbyte", **cli.context_settings)  # click keeps the name of --help
    while isinstance(command, click.Group):
        _, found, words = command.resolve_command(context, words)
        assert found is not None
        command = found
        context = click.Context(command, info_name=command.name, parent=context, **command.context_settings)
    command.parse_args(context, list(words))


def test_a_wrong_option_would_be_noticed():
    with pytest.raises(click.UsageError):
        refuse_unknown_options(["quantize", "SRC", "OUT", "--recipee", "x"])
    with pytest.raises(click.UsageError):
        refuse_unknown_options(["prune", "SRC", "OUT", "--keep", "half"])


@pytest.mark.parametrize("page", NAMES)
def test_every_command_parses(page):
    for language in ("bash", "console"):
        for block in blocks(page, language):
            for words in commands(block):
                refuse_unknown_options(words)


@pytest.mark.parametrize("page", [name for name in NAMES if blocks(name, "bash")])
def test_the_commands_of_a_page_run_in_their_order(page, tmp_path):
    for name in THERE:
        (tmp_path / name).symlink_to(ROOT / name)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    env = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    script = "set -euo pipefail\n" + "".join(blocks(page, "bash"))
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False, cwd=tmp_path, env=env)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]


@pytest.mark.parametrize("page", [name for name in NAMES if blocks(name, "python")])
def test_the_python_of_a_page_runs_in_its_order(page, tmp_path):
    for name in THERE:
        (tmp_path / name).symlink_to(ROOT / name)
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    code = "".join(blocks(page, "python"))
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=tmp_path, env=env
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    for block in blocks(page, "py"):  # which would need the network
        ast.parse(block)


def test_the_page_of_the_api_has_something_to_run():
    assert len(blocks("python.md", "python")) > 4


def test_the_page_of_the_api_names_every_function():
    page = (ROOT / "docs" / "python.md").read_text()
    for name in api.__all__:
        assert f"api.{name}(" in page, name


def test_the_tutorial_has_something_to_run():
    assert blocks("day0.md", "bash")


@cache
def sentences() -> str:
    """Return all strings of the program, one per line: f-strings with a placeholder for each value, and YAML texts."""
    found: list[str] = []
    for file in (ROOT / "src").rglob("*.py"):
        nodes = list(ast.walk(ast.parse(file.read_text())))
        unsaid = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}  # docstrings
        for node in nodes:
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in unsaid:
                found.append(node.value)
            elif isinstance(node, ast.JoinedStr):
                parts = [str(part.value) if isinstance(part, ast.Constant) else HOLE for part in node.values]
                found.append("".join(parts))
    for file in (ROOT / "src").rglob("*.yaml"):
        found += texts_of(yaml.safe_load(file.read_text()))
    return "\n".join(" ".join(text.split()) for text in found)


def texts_of(value: object) -> Iterator[str]:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for one in value:
            yield from texts_of(one)
    elif isinstance(value, str):
        yield value


def quoted(page: str) -> list[str]:
    """Return the messages that a page quotes: code spans that start with ✗, ! or known."""
    return re.findall(r"`(?:✗|!|known:) ([^`]+)`", (ROOT / "docs" / page).read_text())


@pytest.mark.parametrize("page", NAMES)
def test_quoted_sentences_are_those_of_the_program(page):
    missing = [sentence for sentence in quoted(page) if sentence not in sentences()]
    assert not missing, f"{page} quotes what no source file says"


def test_the_symptoms_are_quoted():
    assert len(quoted("troubleshooting.md")) > 30
    assert "a sentence that nobody wrote" not in sentences()


def anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub gives the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", NAMES)
def test_anchors_lead_somewhere(page):
    here = ROOT / "docs" / page
    for target, anchor in re.findall(r"\]\(([^)#:]*)#([^)]+)\)", here.read_text()):
        there = here.parent / target if target else here
        assert anchor in anchors(there), f"{page} links to {target}#{anchor}"


def test_the_index_has_every_page():
    index = (ROOT / "docs" / "README.md").read_text()
    for page in (ROOT / "docs").glob("*.md"):
        assert page.name == "README.md" or f"]({page.name})" in index, page.name
