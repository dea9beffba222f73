"""The options for remote sources, the shard cache and uploads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from halfbyte.checkpoint.remote.address import is_remote, parse_address, refuse_hub_id
from halfbyte.errors import UsageError

if TYPE_CHECKING:
    from halfbyte.checkpoint.folder import Checkpoint
    from halfbyte.checkpoint.remote.address import Cache
    from halfbyte.publish.hub.push import Push

_SIZE = "Size limit of the cache for a remote source.  [default: 60GB]"
_FOLDER = "Cache folder for a remote source.  [default: $HALFBYTE_CACHE, or ~/.cache/halfbyte]"


class _Folder(click.Path):
    """A non-empty folder path: an empty one, e.g. from an unset variable, would be the current folder."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == "":
            self.fail("the path is empty", param, ctx)
        return super().convert(value, param, ctx)


def cache_folder_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --cache-dir."""
    return click.option("--cache-dir", type=_Folder(file_okay=False, path_type=Path), help=_FOLDER)(command)


def cache_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --cache and --cache-dir."""
    return click.option("--cache", metavar="SIZE", help=_SIZE)(cache_folder_option(command))


def push_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --push and --evict."""
    push = "Upload finished shards to this private Hub repository during the run."
    evict = "Delete local shards once the Hub confirms their hash. Requires --push."
    repo = click.option("--push", "push_repo", metavar="REPO", help=push)
    return repo(click.option("--evict", is_flag=True, help=evict)(command))


def chosen_push(out: Path, choice: Mapping[str, Any]) -> Push | None:
    """Return the uploader of finished shards, or None without --push."""
    if choice["push_repo"] is None:
        if choice["evict"]:
            raise UsageError("--evict requires --push", where="--evict", fix="add --push REPO")
        return None
    from halfbyte.publish.hub.hub import Target, check_name
    from halfbyte.publish.hub.push import Push

    repo = check_name(choice["push_repo"], "--push")
    return Push(out, Target(repo, private=True, message="halfbyte: shards of a run"), evict=choice["evict"])


def chosen_cache(choice: Mapping[str, Any]) -> Cache:
    """Return the cache folder and size for a remote source."""
    from halfbyte.checkpoint.remote.address import DEFAULT_CACHE, Cache, default_folder
    from halfbyte.ui.units import nbytes

    return Cache(choice.get("cache_dir") or default_folder(), nbytes(choice.get("cache") or DEFAULT_CACHE, "--cache"))


def chosen_source(source: str, run_folder: Path | None, choice: Mapping[str, Any]) -> Path | Checkpoint:
    """Return the source: a folder, or an open remote checkpoint.

    `run_folder` is the folder in which an earlier run recorded the revision. A resumed run uses that revision.
    """
    if not is_remote(source):
        refuse_hub_id(source)
        option = next((key for key in ("cache", "cache_dir") if choice[key] is not None), None)
        if option is not None:
            fix = "omit it, or pass an address like hf://organization/name"
            raise UsageError("a local source needs no cache", where=f"--{option.replace('_', '-')}", fix=fix)
        return Path(source)
    from halfbyte.checkpoint.remote.mirror import open_remote
    from halfbyte.engine.prefetch import begun_version

    pin = begun_version(run_folder, str(parse_address(source))) if run_folder is not None else None
    return open_remote(source, chosen_cache(choice), pin, verify=choice.get("verify", True))
