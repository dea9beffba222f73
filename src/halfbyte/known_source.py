"""The source as it is known: its shards against their hashes, and against those that a run has begun with."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path

from halfbyte.errors import UsageError
from halfbyte.folders import FOLDER, read_plan
from halfbyte.plan.manifest import Plan
from halfbyte.run import Progress
from halfbyte.source.checkpoint import Checkpoint
from halfbyte.source.foreign import read_json
from halfbyte.source.known_hashes import known_hashes
from halfbyte.source.verify import Stamp, stamps_from_json, verify

VERIFIED = "verified.json"  # source shards that had the known hash, so that they are not read again


def refuse_other_weights(out: Path, made: Plan, weights: Mapping[str, str], finished: Mapping[str, str]) -> None:
    """What is finished was made from this source. A shard that was damaged and is whole now made nothing final."""
    if not finished:
        return
    before = read_plan(out).get("source", weights)
    done = {tensor.name for shard in made.shards if shard.name in finished for tensor in shard.tensors}
    jobs = (job for job in made.jobs if any(output.name in done for output in job.outputs))
    read = {shard for job in jobs for shard in made.source_shards(job)}
    changed = sorted(shard for shard in read if before.get(shard) != weights[shard])
    if changed:
        what = f"this folder was begun from other weights with the same names and shapes ({changed[0]})"
        fix = "give another output folder, or the source that this one was begun from"
        raise UsageError(what, where=str(out), fix=fix)


def verify_source(
    source: Checkpoint,
    out: Path,
    shards: list[str],
    threads: int | None,
    progress: Callable[[Progress], None] | None,
) -> dict[str, Stamp]:
    """Hash the shards of which a hash is known; return those that have it, an error if one has not.

    Those of a source that is elsewhere are hashed as they come.
    """
    if source.remote is not None:
        return {}
    begin = time.monotonic()

    def show(shard: str, done: int, total: int) -> None:
        if progress is not None:
            progress(Progress(done, total, time.monotonic() - begin, f"verified {shard}"))

    known = known_hashes(source.root, shards)
    return verify(source.root, known, _earlier_stamps(out), threads=threads, progress=show)


def verified_count(source: Checkpoint, shards: list[str], stamps: Mapping[str, Stamp] | None) -> int | None:
    """Return of how many shards a SHA-256 is known and right; None where nobody looked."""
    if stamps is None or source.remote is None:
        return None if stamps is None else len(stamps)
    return source.remote.known(shards, "sha256")


def md5_count(source: Checkpoint, shards: list[str]) -> int:
    """Return of how many fetched shards the MD5 was compared, because no SHA-256 is known of them."""
    return source.remote.known(shards, "md5") if source.remote is not None else 0


def _earlier_stamps(out: Path) -> dict[str, Stamp]:
    try:
        return stamps_from_json(read_json(out / FOLDER / VERIFIED))
    except (OSError, ValueError):
        return {}
