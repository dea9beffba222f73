"""Rules of CONTRIBUTING.md that no linter checks."""

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "halfbyte"
FILES = sorted(SOURCE.rglob("*.py"))
NAMELESS = {"utils.py", "helpers.py", "common.py", "base.py", "misc.py"}
CHANGES_PROCESS = ("os.environ", "os.putenv", "signal.", "os.sched_setaffinity", "gc.", "warnings.", "resource.")
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


def executed_on_import(node):
    """Yield the nodes of a module that run when it is imported: all but the bodies of functions and of `__main__`."""
    for child in ast.iter_child_nodes(node):
        main = isinstance(child, ast.If) and ast.unparse(child.test) == "__name__ == '__main__'"
        if not main and not isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            yield child
            yield from executed_on_import(child)


def process_changes(source):
    """Return the lines that change the environment, signals, the collector or warnings on import."""
    changes = []
    for node in executed_on_import(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):  # a call for its effect
            changed = [node.value.func]
        elif isinstance(node, (ast.Assign, ast.AugAssign, ast.Delete)):
            targets = [node.target] if isinstance(node, ast.AugAssign) else node.targets
            changed = [target for target in targets if isinstance(target, (ast.Subscript, ast.Attribute))]
        else:
            continue
        changes += [node.lineno for target in changed if ast.unparse(target).startswith(CHANGES_PROCESS)]
    return changes


@each_file
def test_importing_a_module_does_not_change_the_process(path):
    assert process_changes(path.read_text()) == []


@pytest.mark.parametrize(
    "line", ["os.environ['A'] = '1'", "os.environ.setdefault('A', '1')", "signal.signal(2, f)", "gc.disable()"]
)
def test_process_changes_are_found_on_import_and_allowed_in_functions(line):
    assert process_changes(f"if True:\n    {line}") == [2]
    assert process_changes(f"def f():\n    {line}") == []
