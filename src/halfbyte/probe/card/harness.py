"""Test harness: runs a model-written program, then its tests, and prints a mark if all of them passed.

An exit code is not enough, because a program that calls `sys.exit()` or `unittest.main()` would exit with code 0 before
its tests. So a random mark, passed through stdin, must be printed after the tests, and an exit of the program is
deferred until then. Tests use the original builtins and compare values of built-in types only, so an object that equals
everything fails. A program could still search the interpreter for the mark: this tests models, not attackers. The
sandbox contains attackers.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Sequence

from halfbyte.sandbox.process import Limits, Ran
from halfbyte.sandbox.tiers import Tier, run_python

_AROUND = """
def _around(program, tests):
    import ast, builtins, os, sys, types
    run, build, write, kept = exec, compile, os.write, dict(vars(builtins))
    mark, told = sys.stdin.readline(), os.dup(2)
    sys.modules["__main__"] = module = types.ModuleType("__main__")
    here = vars(module)

    def plain(value):
        if value is None or isinstance(value, bool):
            return value
        for kind in (int, float, complex):
            if isinstance(value, kind):
                return kind.__pos__(value)
        for kind in (str, bytes):
            if isinstance(value, kind):
                return kind.__getitem__(value, slice(None))
        for kind in (list, tuple, set, frozenset):
            if isinstance(value, kind):
                return kind(map(plain, kind.__iter__(value)))
        if isinstance(value, dict):
            return {plain(key): plain(inner) for key, inner in dict.items(value)}
        raise AssertionError("a value of type %s, which is not a built-in type" % type(value).__name__)

    class Compared(ast.NodeTransformer):
        def visit_Compare(self, node):
            self.generic_visit(node)
            if len(node.ops) == 1 and isinstance(node.ops[0], ast.Eq):
                same = ast.Name("_same", ast.Load())
                return ast.copy_location(ast.Call(same, [node.left, node.comparators[0]], []), node)
            return node

    ended = None
    try:
        run(build(program, "program", "exec", dont_inherit=True), here)
    except SystemExit as exit:
        ended = exit
    vars(builtins).update(kept)
    scope = {name: value for name, value in here.items() if name not in kept}
    scope |= {"__name__": "tests", "__builtins__": kept, "_same": lambda a, b: plain(a) == plain(b)}
    for number, test in enumerate(tests):
        tree = ast.fix_missing_locations(Compared().visit(ast.parse(test)))
        run(build(tree, "test %d: %s" % (number, test), "exec", dont_inherit=True, optimize=0), scope)
    write(told, mark.encode())
    if ended is not None:
        raise ended

"""


def run_tested(program: str, tests: Sequence[str], *, tier: Tier | None, limits: Limits) -> tuple[Ran, bool]:
    """Run a program and its tests; return the outcome, and whether all of it ran and passed."""
    mark = secrets.token_hex(16)
    source = f"{_AROUND}_around({json.dumps(program)}, {json.dumps(list(tests))})\n"
    ran = run_python(source, tier=tier, limits=limits, stdin=f"{mark}\n")
    return ran, ran.succeeded and mark in ran.stderr
