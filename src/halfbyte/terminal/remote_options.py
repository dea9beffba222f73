"""The options about sources that are elsewhere, and the source that they make."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from halfbyte.errors import UsageError
from halfbyte.source.remote.address import is_remote, parse_address

if TYPE_CHECKING:
    from halfbyte.publish.upload.push import Push
    from halfbyte.source.checkpoint import Checkpoint
    from halfbyte.source.remote.cache import Cache

_SIZE = "Hold at most so much of a remote source, as in 60GB.  [default: 60GB]"
_FOLDER = "Where a remote source is held.  [default: $HALFBYTE_CACHE, or ~/.cache/halfbyte]"


class _Folder(click.Path):
    """A folder that is named: a variable that is not set would be the current one."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == "":
            self.fail("it is empty", param, ctx)
        return super().convert(value, param, ctx)


def cache_folder_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --cache-dir."""
    return click.option("--cache-dir", type=_Folder(file_okay=False, path_type=Path), help=_FOLDER)(command)


def cache_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --cache and --cache-dir."""
    return click.option("--cache", metavar="SIZE", help=_SIZE)(cache_folder_option(command))


def push_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --push and --evict."""
    push = "Send finished shards to this private repository on the Hub while others are made."
    evict = "Remove a shard here once the Hub has its hash; needs --push."
    repo = click.option("--push", "push_repo", metavar="REPO", help=push)
    return repo(click.option("--evict", is_flag=True, help=evict)(command))


def chosen_push(out: Path, choice: Mapping[str, Any]) -> Push | None:
    """Return what sends finished shards, if somebody asked for it; the repository is there then."""
    if choice["push_repo"] is None:
        if choice["evict"]:
            raise UsageError("nothing is sent, so nothing may go", where="--evict", fix="add --push REPO")
        return None
    from halfbyte.publish.upload.hub import Target, check_name  # noqa: PLC0415
    from halfbyte.publish.upload.push import Push  # noqa: PLC0415

    repo = check_name(choice["push_repo"], "--push")
    return Push(out, Target(repo, private=True, message="halfbyte: shards of a run"), evict=choice["evict"])


def chosen_cache(choice: Mapping[str, Any]) -> Cache:
    """Return where a remote source is held, and how much of it."""
    from halfbyte.source.remote.cache import DEFAULT_CACHE, Cache, default_folder  # noqa: PLC0415 - when it is needed
    from halfbyte.terminal.units import nbytes  # noqa: PLC0415

    return Cache(choice.get("cache_dir") or default_folder(), nbytes(choice.get("cache") or DEFAULT_CACHE, "--cache"))


def chosen_source(source: str, begun: Path | None, choice: Mapping[str, Any]) -> Path | Checkpoint:
    """Return what a run reads: a folder, or a checkpoint that is elsewhere, in the version that a run began with.

    `begun` is the folder in which that run has noted it.
    """
    if not is_remote(source):
        given = next((key for key in ("cache", "cache_dir") if choice[key] is not None), None)
        if given is not None:
            fix = "leave it out, or give an address like hf://organisation/name"
            raise UsageError("nothing is fetched from a folder", where=f"--{given.replace('_', '-')}", fix=fix)
        return Path(source)
    from halfbyte.ahead import begun_version  # noqa: PLC0415
    from halfbyte.source.remote.mirror import open_remote  # noqa: PLC0415

    pin = begun_version(begun, str(parse_address(source))) if begun is not None else None
    return open_remote(source, chosen_cache(choice), pin, verify=choice.get("verify", True))
