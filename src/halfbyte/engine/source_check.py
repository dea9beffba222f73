"""Compare the source's shards with their known hashes, and with those that an earlier run recorded."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path

from halfbyte.checkpoint.folder import Checkpoint
from halfbyte.checkpoint.hashing import Stamp, stamps_from_json, verify
from halfbyte.checkpoint.identity import known_hashes
from halfbyte.checkpoint.output_folder import FOLDER, VERIFIED, read_plan
from halfbyte.checkpoint.untrusted_files import read_json
from halfbyte.engine.runner import Progress
from halfbyte.errors import UsageError
from halfbyte.plan.manifest import Plan


def refuse_other_weights(out: Path, plan: Plan, weights: Mapping[str, str], finished: Mapping[str, str]) -> None:
    """Raise if finished shards were made from other weights. Changed shards that no finished shard read are allowed."""
    if not finished:
        return
    before = read_plan(out).get("source", weights)
    done = {tensor.name for shard in plan.shards if shard.name in finished for tensor in shard.tensors}
    jobs = (job for job in plan.jobs if any(output.name in done for output in job.outputs))
    read = {shard for job in jobs for shard in plan.source_shards(job)}
    changed = sorted(shard for shard in read if before.get(shard) != weights[shard])
    if changed:
        what = f"this folder was started from different weights with the same names and shapes ({changed[0]})"
        fix = "use another output folder, or the original source"
        raise UsageError(what, where=str(out), fix=fix)


def verify_source(
    source: Checkpoint,
    out: Path,
    shards: list[str],
    threads: int | None,
    progress: Callable[[Progress], None] | None,
) -> dict[str, Stamp]:
    """Hash the shards with a known hash and return their stamps; raise on a mismatch.

    Shards of a remote source are hashed while they are downloaded.
    """
    if source.remote is not None:
        return {}
    start = time.monotonic()

    def show(shard: str, done: int, total: int) -> None:
        if progress is not None:
            progress(Progress(done, total, time.monotonic() - start, f"verified {shard}"))

    known = known_hashes(source.root, shards)
    return verify(source.root, known, _earlier_stamps(out), threads=threads, progress=show)


def verified_count(source: Checkpoint, shards: list[str], stamps: Mapping[str, Stamp] | None) -> int | None:
    """Return the number of shards verified by SHA-256; None if verification was off."""
    if stamps is None or source.remote is None:
        return None if stamps is None else len(stamps)
    return source.remote.known(shards, "sha256")


def md5_count(source: Checkpoint, shards: list[str]) -> int:
    """Return the number of downloaded shards verified by MD5 because no SHA-256 is known."""
    return source.remote.known(shards, "md5") if source.remote is not None else 0


def _earlier_stamps(out: Path) -> dict[str, Stamp]:
    try:
        return stamps_from_json(read_json(out / FOLDER / VERIFIED))
    except (OSError, ValueError):
        return {}
