"""The budgets of CONTRIBUTING.md, which no linter counts the way we do."""

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "halfbyte"
FILES = sorted(SOURCE.rglob("*.py"))
MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 60
NAMELESS = {"utils.py", "helpers.py", "common.py", "base.py", "misc.py"}
PRINTERS = {"print", "click.echo", "click.secho", "sys.stdout.write", "sys.stderr.write", "rich.print"}

each_file = pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(SOURCE).as_posix())


@each_file
def test_files_and_functions_stay_short(path):
    text = path.read_text()
    assert len(text.splitlines()) <= MAX_FILE_LINES
    functions = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    lengths = {node.name: node.end_lineno - node.lineno + 1 for node in functions}
    assert {name: lines for name, lines in lengths.items() if lines > MAX_FUNCTION_LINES} == {}


@each_file
def test_a_module_is_named_for_what_it_knows(path):
    assert path.name not in NAMELESS


@each_file
def test_only_the_console_prints(path):
    calls = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
    printing = [node.lineno for node in calls if ast.unparse(node.func) in PRINTERS]
    assert path.name == "console.py" or printing == []


def test_one_place_turns_errors_into_exit_codes():
    handlers = [
        (path.name, node.lineno)
        for path in FILES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ExceptHandler) and node.type and ast.unparse(node.type) == "HalfbyteError"
    ]
    assert [name for name, _ in handlers] == ["cli.py"]
