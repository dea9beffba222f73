"""A program is correct only if its tests ran and passed, not if it exited with code 0."""

import pytest

from halfbyte.probe.card_probes import run_tested
from halfbyte.sandbox.process import Limits
from halfbyte.sandbox.tiers import Tier, Unsandboxed

WRONG = "def double(n):\n    return 5\n"
RIGHT = "def double(n):\n    return 2 * n\n"
TESTS = ["assert double(4) == 8", "assert [double(one) for one in (1, 2)] == [2, 4]"]


def held(program: str, tests=TESTS) -> bool:
    return run_tested(program, tests, tier=Tier("bare", Unsandboxed()), limits=Limits(seconds=20))[1]


@pytest.mark.parametrize(
    "more",
    [
        "", "import sys\nsys.exit(0)", "if __name__ == '__main__':\n    raise SystemExit", "sum = list = print = None",
        "import unittest\nclass T(unittest.TestCase):\n    def test(self): pass\nunittest.main()",
        "def max(a, b):\n    return a\ndef double(n):\n    return max(2 * n, 0)",
        "def double(n):\n    return float(2 * n)", "class Whole(int): pass\ndef double(n):\n    return Whole(2 * n)",
        "from dataclasses import dataclass\n@dataclass\nclass A:\n    n: int\n",
        "import sys\nsys.stderr.write('a warning')",
    ],
)  # fmt: skip
def test_right_programs_pass_however_they_exit(more):
    assert held(RIGHT + more)


@pytest.mark.parametrize(
    "more",
    [
        "", "import sys\nsys.exit(0)", "import os\nos._exit(0)", "exec = compile = lambda *_, **__: None",
        "import builtins\nbuiltins.exec = builtins.compile = lambda *_, **__: None", "import sys\nsys.exit(1)",
        "import os, sys\nsys.excepthook = lambda *_: os._exit(0)", "import atexit, os\natexit.register(os._exit, 0)",
        "import unittest\nclass T(unittest.TestCase):\n    def test(self): pass\nunittest.main()",
        "class Any:\n    def __eq__(self, other): return True\ndef double(n):\n    return Any()",
        "class Any(int):\n    def __eq__(self, other): return True\ndef double(n):\n    return Any()",
        "import sys\ndef double(n):\n    sys.exit(0)", "AssertionError = type('Quiet', (BaseException,), {})",
        "import os, sys\nif not sys.flags.optimize:\n    os.execv(sys.executable, [sys.executable, '-O', sys.argv[0]])",
    ],
)  # fmt: skip
def test_wrong_programs_fail_whatever_they_do(more):
    assert not held(WRONG + more)


def test_an_exit_with_an_error_is_reported():
    ran, good = run_tested(
        RIGHT + "import sys\nsys.exit(3)", TESTS, tier=Tier("bare", Unsandboxed()), limits=Limits(seconds=20)
    )
    assert (ran.code, good) == (3, False)


def test_large_numbers_are_compared_to_the_last_digit():
    assert held("n = 2**70", ["assert n == 2**70"])
    assert not held("n = 2**70", ["assert n == 2**70 + 1"])


def test_a_program_sees_no_mark_in_its_text_and_an_empty_stdin():
    assert held("import sys\nleft = sys.stdin.read()\ntext = open(sys.argv[0]).read()", ["assert left == ''"])
