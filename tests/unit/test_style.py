"""Rules of CONTRIBUTING.md that no linter checks."""

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "halfbyte"
FILES = sorted(SOURCE.rglob("*.py"))
NAMELESS = {"utils.py", "helpers.py", "common.py", "base.py", "misc.py"}
PRINTERS = {"print", "click.echo", "click.secho", "sys.stdout.write", "sys.stderr.write", "rich.print"}

each_file = pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(SOURCE).as_posix())


@each_file
def test_a_module_is_named_for_what_it_knows(path):
    assert path.name not in NAMELESS


@each_file
def test_only_the_console_prints(path):
    calls = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
    printing = [node.lineno for node in calls if ast.unparse(node.func) in PRINTERS]
    assert path.name == "console.py" or printing == []


def test_one_place_turns_errors_into_exit_codes():
    """The API may reword an error if it raises the same error again."""
    handlers = [
        (path.name, node.lineno)
        for path in FILES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ExceptHandler)
        and node.type
        and ast.unparse(node.type) == "HalfbyteError"
        and ast.unparse(node.body[-1]) != "raise"
    ]
    assert [name for name, _ in handlers] == ["main.py"]
