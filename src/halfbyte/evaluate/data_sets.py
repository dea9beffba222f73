"""Check and hash the rows of a task before the first request.

Runs with equal hashes use the same items and draw few-shot examples from the same rows.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from typing import Any, cast

from halfbyte.errors import UsageError


def data_hash(loaded: dict[str, Any], where: str) -> str:
    """Return the hash of the rows of a task's parts, loaded by lm-eval."""
    digest = hashlib.sha256()
    for name in sorted(loaded):
        part: Any = loaded[name]
        rows = list(part.eval_docs)
        if not rows:
            raise UsageError(f"{name} has no rows", where=where, fix="check its files; each line is one row")
        _try_columns(part, rows[0], name, where)
        digest.update(name.encode() + b"\0")
        for row in (*rows, *_shown(part)):
            line = json.dumps(row, ensure_ascii=False, sort_keys=True, default=str) + "\n"
            digest.update(line.encode("utf-8", "backslashreplace"))
    return digest.hexdigest()


def _try_columns(part: Any, row: Any, name: str, where: str) -> None:
    """Build the prompt and target of the first row, so that a missing column fails before the run."""
    try:
        part.doc_to_text(row)
        part.doc_to_target(row)
    except Exception as error:  # lm-eval's templates and task functions raise any exception
        columns = ", ".join(cast("dict[str, Any]", row)) if isinstance(row, dict) else type(row).__name__
        what = f"{name}: cannot build a prompt from the first row ({type(error).__name__}: {error}); columns: {columns}"
        fix = "use files with the original columns"
        raise UsageError(what, where=where, fix=fix) from None


def _shown(part: Any) -> Iterable[Any]:
    """Return the rows for few-shot examples, if any."""
    try:
        return part.fewshot_docs() or ()
    except Exception:  # no such split, or a custom sampler; the task's file is hashed too
        return ()
