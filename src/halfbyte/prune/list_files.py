"""Where `--plan-only` and `--keep-list` may write: never into the source, and over nothing but such files.

A path that is mistyped must not cost a checkpoint its config.json.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from halfbyte.errors import UsageError
from halfbyte.prune.keep_list import is_keep_list
from halfbyte.prune.plan_file import KIND, read_json

_OPTIONS = {"plan_only": "--plan-only", "keep_list": "--keep-list"}
_MOST_NBYTES = 1 << 26  # the plan of Kimi-K2.6 has half a megabyte; nobody wants shards read to the end


def refuse_to_replace(choice: Mapping[str, Path | None], source: Path) -> None:
    """Refuse files of the source, existing files that are neither plan nor keep list, and one file for both."""
    found = {option: path for key, option in _OPTIONS.items() if (path := choice[key]) is not None}
    for option, path in found.items():
        if _is_inside(path, source):
            what = f"{option} would write into the source, which is only read"
            raise UsageError(what, where=str(path), fix="give a path outside of it")
        if path.exists() and not _is_ours(path):
            what = f"{option} would replace a file that is neither a prune plan nor a keep list"
            raise UsageError(what, where=str(path), fix="give a new path, or move that file away")
    if len({path.resolve() for path in found.values()}) < len(found):
        what = "--plan-only and --keep-list are the same file"
        raise UsageError(what, where=str(found["--keep-list"]), fix="give each its own")


def _is_inside(path: Path, folder: Path) -> bool:
    """Whether a path is in a folder: by its own place, and by that of the file that it may be a link to."""
    return any(place.is_relative_to(folder.resolve()) for place in (path.parent.resolve() / path.name, path.resolve()))


def _is_ours(path: Path) -> bool:
    if not path.is_file() or path.stat().st_size > _MOST_NBYTES:
        return False
    try:
        found = read_json(path)
    except UsageError:
        return False
    if isinstance(found, dict) and "kind" in found:
        return cast("dict[str, Any]", found)["kind"] == KIND
    return is_keep_list(found)
