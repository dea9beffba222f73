"""Long benchmarks create their results folder first, or fail immediately."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
OUTPUTS = {"--out": "out", "--output": "output"}


def output_options(tree: ast.AST) -> set[str]:
    """Return the parsed arguments that name result files."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    added = [call for call in calls if isinstance(call.func, ast.Attribute) and call.func.attr == "add_argument"]
    names = {arg.value for call in added for arg in call.args if isinstance(arg, ast.Constant)}
    return {attribute for name, attribute in OUTPUTS.items() if name in names}


def after_parsing(tree: ast.AST) -> ast.stmt | None:
    """Return the statement after argument parsing."""
    for function in (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)):
        for one, following in zip(function.body, function.body[1:], strict=False):
            if "parse_args()" in ast.unparse(one):
                return following
    return None


PROGRAMS = [
    path
    for folder in ("benchmarks", "training")
    for path in sorted((ROOT / folder).rglob("*.py"))
    if "parse_args" in path.read_text() and output_options(ast.parse(path.read_text()))
    and path != ROOT / "training/train.py"  # which makes its folder with the first checkpoint, and --out is required
]  # fmt: skip


def test_the_programs_are_found():
    assert ROOT / "benchmarks/bench_quality.py" in PROGRAMS
    assert len(PROGRAMS) >= 15


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.stem)
def test_the_place_of_results_is_made_before_any_work(path):
    tree = ast.parse(path.read_text())
    first = after_parsing(tree)
    assert first is not None, "the arguments are parsed in a statement of their own"
    (attribute,) = output_options(tree)
    assert f".{attribute}." in ast.unparse(first)
    assert ".mkdir(parents=True, exist_ok=True)" in ast.unparse(first)


def test_a_place_that_cannot_be_made_ends_a_benchmark_at_once(tmp_path):
    (tmp_path / "file").write_text("")
    command = [sys.executable, "benchmarks/bench_headers.py", "-o", str(tmp_path / "file" / "new" / "result.json")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "given.output.parent.mkdir" in done.stderr
    assert "NotADirectoryError" in done.stderr
