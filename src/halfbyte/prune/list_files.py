"""Check the output paths of `--plan-only` and `--keep-list`: outside the source, replacing only such files.

A mistyped path must not overwrite a checkpoint's config.json.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from halfbyte.errors import UsageError
from halfbyte.plan.prune_plan import KIND, read_json
from halfbyte.prune.keep_list import is_keep_list

_OPTIONS = {"plan_only": "--plan-only", "keep_list": "--keep-list"}
_MOST_NBYTES = 1 << 26  # the plan of Kimi-K2.6 has 0.5 MB; avoids reading whole shards


def refuse_to_replace(choice: Mapping[str, Path | None], source: Path) -> None:
    """Raise for paths in the source, existing files that are neither plan nor keep list, and one path for both."""
    paths = {option: path for key, option in _OPTIONS.items() if (path := choice[key]) is not None}
    for option, path in paths.items():
        if _is_inside(path, source):
            what = f"{option} would write into the source, which is read-only"
            raise UsageError(what, where=str(path), fix="pass a path outside it")
        if path.exists() and not _is_ours(path):
            what = f"{option} would replace a file that is neither a prune plan nor a keep list"
            raise UsageError(what, where=str(path), fix="pass a new path, or move the file away")
    if len({path.resolve() for path in paths.values()}) < len(paths):
        what = "--plan-only and --keep-list are the same file"
        raise UsageError(what, where=str(paths["--keep-list"]), fix="pass two different paths")


def _is_inside(path: Path, folder: Path) -> bool:
    """Whether a path, or the target of a link at it, is in a folder."""
    return any(real.is_relative_to(folder.resolve()) for real in (path.parent.resolve() / path.name, path.resolve()))


def _is_ours(path: Path) -> bool:
    if not path.is_file() or path.stat().st_size > _MOST_NBYTES:
        return False
    try:
        content = read_json(path)
    except UsageError:
        return False
    if isinstance(content, dict) and "kind" in content:
        return cast("dict[str, Any]", content)["kind"] == KIND
    return is_keep_list(content)
