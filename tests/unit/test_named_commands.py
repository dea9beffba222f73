"""Every `halfbyte X` in a text names an existing command with existing options."""

import ast
import re
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import click
import pytest

from halfbyte.cli import main as cli

ROOT = Path(__file__).parents[2]
DOCS = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *ROOT.glob("docs/**/*.md")])
SOURCES = sorted(ROOT.glob("src/halfbyte/**/*.py"))
DATA = sorted([*ROOT.glob("src/halfbyte/**/*.yaml"), *ROOT.glob("examples/**/*.yaml"), ROOT / "Makefile"])
GLOBAL = {"--json", "-q", "--quiet", "-v", "--verbose", "--no-color", "--version", "-h", "--help"}
# What follows the program's name in a sentence.
PROSE = {
    "and",
    "as",
    "can",
    "cannot",
    "did",
    "does",
    "has",
    "import",
    "is",
    "it",
    "knows",
    "made",
    "makes",
    "on",
    "or",
    "publishes",
    "reads",
    "runs",
    "says",
    "stands",
    "takes",
    "that",
    "turns",
    "unusable",
    "will",
    "works",
    "would",
    "writes",
    "wrote",
}
PROSE.add("sbom")  # the seed of a UUID
NAMED = re.compile(r"(?<![\w/.@-])halfbyte ((?:-\S+ )*)([a-z][a-z-]*)([^\n`]*)")
QUOTED = re.compile(r"`([^`\n]+)`")
OPTION = re.compile(r"(?<![\w-])(--[a-z][a-z-]*|-[a-zA-Z])(?![\w-])")
MODULE = re.compile(r"python3? -m (halfbyte[\w.]*\w)")
END = re.compile(r"[;|>#&)]|\. |, |: | \(| - ")  # where a command ends and a sentence or another program begins


def texts_of_python(path: Path) -> Iterator[str]:
    """Yield the strings of a module, with a placeholder for computed parts."""
    tree = ast.parse(path.read_text())
    inner = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "X" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inner:
            yield node.value


def texts_of_docs(path: Path) -> Iterator[str]:
    """Yield code: text in backticks, and the lines of fenced blocks."""
    text = path.read_text()
    for number, part in enumerate(re.split(r"^ *```.*$", text, flags=re.MULTILINE)):
        if number % 2:
            yield part.replace("\\\n", " ")
        else:
            yield from QUOTED.findall(part)


def problems(text: str) -> Iterator[str]:
    yield from (f"no module {module}" for module in MODULE.findall(text) if find_spec(module) is None)
    for _, name, rest in NAMED.findall(text):
        if name in PROSE:
            continue
        command = cli.cli.commands.get(name)
        if command is None:
            yield f"no command '{name}' in: halfbyte {name}{rest[:60]}"
            continue
        words = END.split(rest)[0]
        if isinstance(command, click.Group):
            inner = words.split()[:1]
            if inner and re.fullmatch("[a-z]+", inner[0]) and inner[0] not in command.commands:
                yield f"no command '{name} {inner[0]}'"
            continue
        known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
        for option in OPTION.findall(re.sub("'[^']*'", "", words)):  # not those of a program in quotes
            if option not in known | GLOBAL:
                yield f"no option {option} in: halfbyte {name}{words}"


@pytest.mark.parametrize("path", [*DOCS, *SOURCES, *DATA], ids=lambda path: str(path.relative_to(ROOT)))
def test_named_commands_exist(path):
    texts = {".py": texts_of_python, ".md": texts_of_docs}.get(path.suffix, lambda path: [path.read_text()])
    assert [problem for text in texts(path) for problem in problems(text)] == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("halfbyte decode OUT", "no command 'decode'"),
        ("`halfbyte quantize SRC OUT --scheme x`", "no option --scheme"),
        ("halfbyte recipes find x", "no command 'recipes find'"),
        ("python -m halfbyte.release.sign OUT", "no module halfbyte.release.sign"),
    ],
)
def test_a_command_that_does_not_exist_is_found(text, said):
    assert said in "".join(problems(text))


def test_sentences_and_existing_commands_are_not_reported():
    assert not list(problems("halfbyte reads X; next: halfbyte quantize SRC OUT -r NAME --set a=b, then --whatever"))
