"""The whole flow on one page: open, plan, run what is pending, finish, and say what happened.

Running again is resuming: finished shards are in the journal, are verified, and are not made again.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from halfbyte.errors import InterruptedRunError, MachineError, UsageError
from halfbyte.models.model import describe
from halfbyte.plan.engine_config import MODELOPT_FILE, modelopt_file, output_config
from halfbyte.plan.manifest import Plan, make_plan, refuse_other_plan
from halfbyte.plan.rules import refuse_what_is_not_built
from halfbyte.recipe_schema import Recipe
from halfbyte.run import Progress, run_jobs
from halfbyte.source.checkpoint import CONFIG, INDEX, Checkpoint, open_checkpoint
from halfbyte.write import PART, Journal, file_sha256, sync_folder, write_whole

FOLDER = "halfbyte"
PLAN = "plan.json"
JOURNAL = "journal.jsonl"
_SPARE_NBYTES = 1 << 28  # config, index, tokenizer and the file system's own needs


@dataclass(frozen=True, slots=True)
class Result:
    """What a run did."""

    out: Path
    fingerprint: str
    shards: int
    resumed: int
    write_nbytes: int
    seconds: float


def plan(source: Path | Checkpoint, recipe: Recipe, *, layers: int | None = None) -> Plan:
    """Decide everything that `quantize` would do. Reads headers only."""
    checkpoint = open_checkpoint(source) if isinstance(source, Path) else source
    return make_plan(checkpoint, describe(checkpoint), recipe, layers=layers)


def quantize(
    source: Path,
    out: Path,
    recipe: Recipe,
    *,
    layers: int | None = None,
    threads: int | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> Result:
    """Make the checkpoint that the recipe describes; the same call goes on where a killed one stopped."""
    begin = time.monotonic()
    _refuse_nested(source, out)
    refuse_what_is_not_built(recipe)
    made = plan(source, recipe, layers=layers)
    journal = _open_folder(out, made)
    finished = _verified(out, made, journal)
    _check_space(out, made, finished)
    try:
        run_jobs(made, out, journal, finished, threads=threads, progress=progress)
    except KeyboardInterrupt:
        final = len({line.get("shard") for line in journal.lines()})
        what = f"stopped; {final} of {len(made.shards)} shards are final on disk, and nothing is left to clean up"
        raise InterruptedRunError(what, where=str(out), fix="run the same command again to go on") from None
    _write_rest(made, out)
    resumed = len(finished)
    return Result(out, made.fingerprint(), len(made.shards), resumed, made.write_nbytes, time.monotonic() - begin)


def _refuse_nested(source: Path, out: Path) -> None:
    inner, outer = out.resolve(), source.resolve()
    if inner == outer or inner.is_relative_to(outer):
        raise UsageError("the output folder lies inside the source", where=str(out), fix="give a folder elsewhere")


def _open_folder(out: Path, made: Plan) -> Journal:
    """Create the output folder, or find in it the same plan as ours."""
    known = out / FOLDER / PLAN
    if known.exists():
        refuse_other_plan(json.loads(known.read_text(encoding="utf-8")), made, str(out))
    elif out.exists() and any(out.iterdir()):
        raise UsageError("the output folder is not empty", where=str(out), fix="give a new folder")
    try:
        (out / FOLDER).mkdir(parents=True, exist_ok=True)
        write_whole(known, json.dumps(made.as_dict(), indent=1).encode())
    except OSError as error:
        raise MachineError(f"cannot write: {error.strerror}", where=str(out), fix="check the permissions") from None
    return Journal(out / FOLDER / JOURNAL)


def _verified(out: Path, made: Plan, journal: Journal) -> dict[str, str]:
    """Return the shards that are final: journalled, of the planned size, and of the journalled hash."""
    sizes = {shard.name: shard.nbytes for shard in made.shards}
    finished: dict[str, str] = {}
    for line in journal.lines():
        name, digest = line.get("shard"), line.get("sha256")
        path = out / str(name)
        if name in sizes and path.is_file() and path.stat().st_size == sizes[name] and file_sha256(path) == digest:
            finished[name] = str(digest)
    return finished


def _check_space(out: Path, made: Plan, finished: dict[str, str]) -> None:
    for stale in out.glob(f"*{PART}"):
        stale.unlink()
    needed = sum(shard.nbytes for shard in made.shards if shard.name not in finished) + _SPARE_NBYTES
    free = shutil.disk_usage(out).free
    if finished.keys() != {shard.name for shard in made.shards} and free < needed:
        what = f"the output needs {needed / 1e9:,.1f} GB, the disk has {free / 1e9:,.1f} GB free"
        raise MachineError(what, where=str(out), fix="free some space, or give a folder on another disk")


def _write_rest(made: Plan, out: Path) -> None:
    """Copy what is not weights and write config and index, after the last shard: a folder with a config is whole."""
    root = made.checkpoint.root
    for relative in made.checkpoint.other_files():
        # A source that halfbyte made has a plan and a journal of its own, which are not ours.
        if relative.parts[0] != FOLDER and str(relative) not in (CONFIG, MODELOPT_FILE):
            target = out / relative
            target.parent.mkdir(parents=True, exist_ok=True)
            write_whole(target, (root / relative).read_bytes())
    names = {tensor.name: shard.name for shard in made.shards for tensor in shard.tensors}
    total = sum(tensor.nbytes for shard in made.shards for tensor in shard.tensors)
    if len(made.shards) > 1:
        index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(names.items()))}
        write_whole(out / INDEX, (json.dumps(index, indent=2) + "\n").encode())
    config: dict[str, Any] = output_config(made)
    if (legacy := modelopt_file(made)) is not None:
        write_whole(out / MODELOPT_FILE, json.dumps(legacy, indent=4).encode())
    write_whole(out / CONFIG, json.dumps(config, indent=2, ensure_ascii=False).encode())
    sync_folder(out)
