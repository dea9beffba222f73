"""The rows that a task asks: there, in the columns that the task reads, and with a hash of all of them.

All of this happens before the first request. Two runs with equal hashes ask the same items, with the same examples to
draw from.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from typing import Any, cast

from halfbyte.errors import UsageError


def data_hash(loaded: dict[str, Any], where: str) -> str:
    """Return the hash of the rows of all of a task's parts (by name, as lm-eval has loaded them)."""
    digest = hashlib.sha256()
    for name in sorted(loaded):
        part: Any = loaded[name]
        rows = list(part.eval_docs)
        if not rows:
            raise UsageError(f"{name} has no rows to ask", where=where, fix="look at its files; one row is one line")
        _try_columns(part, rows[0], name, where)
        digest.update(name.encode() + b"\0")
        for row in (*rows, *_shown(part)):
            line = json.dumps(row, ensure_ascii=False, sort_keys=True, default=str) + "\n"
            digest.update(line.encode("utf-8", "backslashreplace"))
    return digest.hexdigest()


def _try_columns(part: Any, row: Any, name: str, where: str) -> None:
    """Make a question and its answer of the first row: a column that is missing shows here and not in the night."""
    try:
        part.doc_to_text(row)
        part.doc_to_target(row)
    except Exception as error:  # templates of lm-eval and functions of tasks raise what they like
        has = ", ".join(cast("dict[str, Any]", row)) if isinstance(row, dict) else type(row).__name__
        what = f"{name} cannot make a question of the first row ({type(error).__name__}: {error}); it has: {has}"
        fix = "take the files in the original columns"
        raise UsageError(what, where=where, fix=fix) from None


def _shown(part: Any) -> Iterable[Any]:
    """The rows from which examples are drawn; a task may have none."""
    try:
        return part.fewshot_docs() or ()
    except Exception:  # no such split, or a sampler of its own: the task's file is hashed as well
        return ()
