"""The patterns that keep tests out of `make test`, or in it, match tests that exist."""

import re
from fnmatch import fnmatchcase
from pathlib import Path

import pytest
from exhaustive import EXHAUSTIVE, KEPT

TESTS = Path(__file__).parents[1]
FILES = {path.relative_to(TESTS.parent).as_posix(): path for path in TESTS.rglob("test_*.py")}


@pytest.mark.parametrize("pattern", (*EXHAUSTIVE, *KEPT))
def test_a_pattern_matches_a_test(pattern):
    file, _, test = pattern.partition("::")
    matching = [path for name, path in FILES.items() if fnmatchcase(name, file)]
    assert matching
    start = re.split(r"[*[]", test)[0]
    assert any(f"def {start or 'test_'}" in path.read_text(encoding="utf-8") for path in matching)
