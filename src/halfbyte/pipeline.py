"""The whole flow on one page: open, plan, verify the source, run what is pending, finish, and say what happened.

Running again is resuming: finished shards are in the journal, are verified, and are not made again.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from halfbyte.errors import CheckpointError, InterruptedRunError, MachineError, TensorError, UsageError
from halfbyte.models.declared import stored_as_declared
from halfbyte.models.model import Model, describe
from halfbyte.plan.engine_config import MODELOPT_FILE, modelopt_file, output_config
from halfbyte.plan.manifest import Plan, make_plan, refuse_other_plan
from halfbyte.plan.rules import refuse_what_is_not_built
from halfbyte.recipe_schema import Recipe
from halfbyte.run import Progress, run_jobs
from halfbyte.source.checkpoint import CONFIG, INDEX, Checkpoint, open_checkpoint
from halfbyte.source.identity import identity
from halfbyte.source.known_hashes import known_hashes
from halfbyte.source.read import stamps as source_stamps
from halfbyte.source.verify import Stamp, stamps_as_json, stamps_from_json, verify
from halfbyte.write import PART, Journal, disk_error, file_sha256, sync_folder, write_whole

FOLDER = "halfbyte"
PLAN = "plan.json"
JOURNAL = "journal.jsonl"
VERIFIED = "verified.json"  # source shards that had the known hash, so that they are not read again
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
    source_shards: int
    verified_shards: int | None  # None: verification was not asked for


def plan(source: Path | Checkpoint, recipe: Recipe, *, layers: int | None = None) -> Plan:
    """Decide everything that `quantize` would do. Reads headers only."""
    checkpoint = open_checkpoint(source) if isinstance(source, Path) else source
    model = describe(checkpoint)
    _refuse_other_config(checkpoint, model)
    return make_plan(checkpoint, model, recipe, layers=layers)


def quantize(  # noqa: PLR0913 - keyword-only, and none of the options decides a byte but `layers`
    source: Path,
    out: Path,
    recipe: Recipe,
    *,
    layers: int | None = None,
    threads: int | None = None,
    verify_source: bool = True,
    progress: Callable[[Progress], None] | None = None,
) -> Result:
    """Make the checkpoint that the recipe describes; the same call goes on where a killed one stopped."""
    begin = time.monotonic()
    _refuse_nested(source, out)
    refuse_what_is_not_built(recipe)
    made = plan(source, recipe, layers=layers)
    others = made.checkpoint.other_files()  # what cannot be copied is said now, not after the last shard
    weights, seen = identity(made.checkpoint), source_stamps(made.checkpoint)
    _check_folder(out, made)
    journal = Journal(out / FOLDER / JOURNAL)
    finished = _verified(out, made, journal)
    _check_source(out, made, weights, finished)
    _check_space(out, made, finished)
    needed = sorted({info.shard for job in made.jobs for info in job.sources})
    stamps = _verify_source(source, out, needed, threads, progress) if verify_source else None
    with _explained(out, made, journal), _alone(out), _without_parts(out):  # nothing was written until here
        _check_folder(out, made)  # again, now that nobody else can begin
        _begin(out, made, weights, stamps)
        run_jobs(made, out, journal, finished, seen=seen, threads=threads, progress=progress)
        _write_rest(made, out, others)
    return Result(
        out=out,
        fingerprint=made.fingerprint(),
        shards=len(made.shards),
        resumed=len(finished),
        write_nbytes=made.write_nbytes,
        seconds=time.monotonic() - begin,
        source_shards=len(needed),
        verified_shards=None if stamps is None else len(stamps),
    )


def _refuse_other_config(checkpoint: Checkpoint, model: Model) -> None:
    level, sentence = stored_as_declared(checkpoint, model)
    if level == "bad":
        fix = "config.json and the weights do not belong together: download both again"
        raise CheckpointError(sentence, where=str(checkpoint.root / CONFIG), fix=fix)


def _refuse_nested(source: Path, out: Path) -> None:
    inner, outer = out.resolve(), source.resolve()
    if inner == outer or inner.is_relative_to(outer):
        raise UsageError("the output folder lies inside the source", where=str(out), fix="give a folder elsewhere")


def read_plan(out: Path) -> dict[str, Any]:
    """Return the plan.json of an output folder."""
    path = out / FOLDER / PLAN
    try:
        found: Any = json.loads(path.read_text(encoding="utf-8"))
        if all(isinstance(found[key], dict) for key in ("parts", "shards", "recipe")):
            return cast("dict[str, Any]", found)
    except (OSError, ValueError, TypeError, KeyError):
        pass
    fix = "restore the file, or remove the folder and begin anew"
    raise UsageError("the plan of this folder cannot be read", where=str(path), fix=fix)


def _check_folder(out: Path, made: Plan) -> None:
    """The output folder can be made, is empty, or holds the same plan as ours; nothing is written yet."""
    if (out / FOLDER / PLAN).is_file():
        refuse_other_plan(read_plan(out), made, str(out))
    elif out.is_dir() and any(map(_is_foreign, out.iterdir())):
        raise UsageError("the output folder is not empty", where=str(out), fix="give a new folder")
    nearest = _nearest(out)
    if not nearest.is_dir():
        fix = "give a folder that does not exist yet, or an empty one"
        raise UsageError("the output lies where a file is", where=str(nearest), fix=fix)
    if not os.access(nearest, os.W_OK | os.X_OK):
        fix = "check the folder's permissions, or give a folder elsewhere"
        raise MachineError("no permission to write here", where=str(nearest), fix=fix)


def _is_foreign(path: Path) -> bool:
    """Whether something lies in an output folder that no run of ours left before its first byte."""
    return path.name != FOLDER or not path.is_dir() or any(path.iterdir())


def _check_source(out: Path, made: Plan, weights: Mapping[str, str], finished: Mapping[str, str]) -> None:
    """What is finished was made from this source. A shard that was damaged and is whole now made nothing final."""
    if not finished:
        return
    before = read_plan(out).get("source", weights)
    done = {tensor.name for shard in made.shards if shard.name in finished for tensor in shard.tensors}
    jobs = (job for job in made.jobs if any(output.name in done for output in job.outputs))
    changed = sorted({s.shard for job in jobs for s in job.sources if before.get(s.shard) != weights[s.shard]})
    if changed:
        what = f"this folder was begun from other weights with the same names and shapes ({changed[0]})"
        fix = "give another output folder, or the source that this one was begun from"
        raise UsageError(what, where=str(out), fix=fix)


def _nearest(out: Path) -> Path:
    """Return the folder, or the nearest one above it that exists."""
    return next(path for path in (out.absolute(), *out.absolute().parents) if path.exists())


def _verify_source(
    source: Path, out: Path, shards: list[str], threads: int | None, progress: Callable[[Progress], None] | None
) -> dict[str, Stamp]:
    """Hash the shards of which a hash is known; return those that have it, an error if one has not."""
    begin = time.monotonic()

    def show(shard: str, done: int, total: int) -> None:
        if progress is not None:
            progress(Progress(done, total, time.monotonic() - begin, f"verified {shard}"))

    return verify(source, known_hashes(source, shards), _earlier_stamps(out), threads=threads, progress=show)


def _earlier_stamps(out: Path) -> dict[str, Stamp]:
    try:
        return stamps_from_json(json.loads((out / FOLDER / VERIFIED).read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return {}


@contextmanager
def _without_parts(out: Path) -> Generator[None]:
    """Whatever ends a run, nothing half-written stays."""
    try:
        yield
    except BaseException:
        for part in out.rglob(f"*{PART}"):
            part.unlink(missing_ok=True)
        raise


@contextmanager
def _explained(out: Path, made: Plan, journal: Journal) -> Generator[None]:
    """Say what ended a run, and how it goes on."""
    try:
        yield
    except KeyboardInterrupt:
        final = len({line.get("shard") for line in journal.lines()})
        what = f"stopped; {final} of {len(made.shards)} shards are final on disk, and nothing is left to clean up"
        raise InterruptedRunError(what, where=str(out), fix="run the same command again to go on") from None
    except TensorError as error:
        raise _in_its_shard(error, made) from None
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise disk_error(error, out) from None
        fix = "check the disk and the folder, then run the same command again: finished shards are kept"
        what = f"cannot go on: {error.strerror or error}"
        raise MachineError(what, where=str(error.filename or out), fix=fix) from None


def _in_its_shard(error: TensorError, made: Plan) -> TensorError:
    """Say which file holds a tensor that cannot be used."""
    linear = made.model.linears.get(error.where)
    if linear is None:
        return error
    shards = ", ".join(sorted({part.shard for part in linear.parts.values()}))
    fix = f"{error.fix}; download it again, then run the same command: finished shards are kept"
    return TensorError(error.what, where=f"{shards}: {error.where}", fix=fix)


@contextmanager
def _alone(out: Path) -> Generator[None]:
    """One run at a time in a folder: two would write into each other's shards. A killed run's lock dies with it."""
    (out / FOLDER).mkdir(parents=True, exist_ok=True)
    folder = os.open(out / FOLDER, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            fix = f"wait for it (halfbyte status {out} --watch), or give another folder"
            raise UsageError("another run is writing into this folder", where=str(out), fix=fix) from None
        yield
    finally:
        os.close(folder)


def _begin(out: Path, made: Plan, weights: Mapping[str, str], stamps: dict[str, Stamp] | None) -> None:
    for stale in out.glob(f"*{PART}"):
        stale.unlink()  # of a run that was killed
    write_whole(out / FOLDER / PLAN, json.dumps({**made.as_dict(), "source": weights}, indent=1).encode())
    if stamps:
        write_whole(out / FOLDER / VERIFIED, json.dumps(stamps_as_json(stamps), indent=1).encode())


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
    needed = sum(shard.nbytes for shard in made.shards if shard.name not in finished) + _SPARE_NBYTES
    free = shutil.disk_usage(_nearest(out)).free + sum(stale.stat().st_size for stale in out.glob(f"*{PART}"))
    if finished.keys() != {shard.name for shard in made.shards} and free < needed:
        what = f"the output needs {needed / 1e9:,.1f} GB, the disk has {free / 1e9:,.1f} GB free"
        raise MachineError(what, where=str(out), fix="free some space, or give a folder on another disk")


def _write_rest(made: Plan, out: Path, others: list[Path]) -> None:
    """Copy what is not weights and write config and index, after the last shard: a folder with a config is whole."""
    root = made.checkpoint.root
    for relative in others:
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
