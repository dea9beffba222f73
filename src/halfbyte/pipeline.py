"""The whole flow on one page: open, plan, verify the source, run what is pending, finish, and say what happened.

Running again is resuming: finished shards are in the journal, are verified, and are not made again.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from halfbyte.ahead import Ahead, refuse_other_version, write_origin
from halfbyte.calibrate.store import STATS as STATS_FILE
from halfbyte.calibrate.store import refuse_other
from halfbyte.ended import explained
from halfbyte.errors import UsageError
from halfbyte.folders import (
    FOLDER,
    PLAN,
    alone,
    is_foreign,
    read_plan,
    refuse_nested,
    refuse_unwritable,
    without_parts,
)
from halfbyte.known_source import VERIFIED, md5_count, refuse_other_weights, verified_count
from halfbyte.known_source import verify_source as verify_shards
from halfbyte.machine.address_space import refuse_few_addresses
from halfbyte.models.declared import refuse_other_config
from halfbyte.models.model import describe
from halfbyte.numerics.blas import one_blas_thread
from halfbyte.passes import Work, run_pending
from halfbyte.plan.ignore_list import refuse_misread
from halfbyte.plan.manifest import Plan, make_plan, refuse_nothing_to_prune, refuse_other_plan
from halfbyte.plan.pruned import Kept, kept_digest
from halfbyte.plan.summary import by_role, peak_memory_nbytes
from halfbyte.prune.plan_file import PLAN as PRUNE_PLAN
from halfbyte.prune.plan_file import PrunePlan, write_prune_plan
from halfbyte.prune.record import carry
from halfbyte.prune.report import stored_advice
from halfbyte.recipe.decisions import COMPENSATED, Recipe
from halfbyte.rest import write_rest
from halfbyte.run import Means, Progress, Runner
from halfbyte.source.checkpoint import Checkpoint, open_checkpoint
from halfbyte.source.identity import identity
from halfbyte.source.read import stamps as source_stamps
from halfbyte.source.verify import Stamp, stamps_as_json
from halfbyte.write import PART, Journal, file_sha256, write_whole

if TYPE_CHECKING:
    from halfbyte.calibrate.given import Statistics
    from halfbyte.calibrate.report import Report
    from halfbyte.machine.advice import Advice
    from halfbyte.plan.file import PlanFile
    from halfbyte.prune.decide import LayerByLayer
    from halfbyte.publish.upload.push import Push

CHOSEN = "chosen"  # in plan.json: the digest of the experts that stayed, where they were chosen on the way
JOURNAL = "journal.jsonl"
STATS = "stats"  # a folder: statistics while they are made, and then one file
STATS_SHA256 = "statistics_sha256"  # in plan.json: of that file, as the run left it
CPU = "cpu"
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
    coverage: Report | None  # how the calibration data covered the experts; None: no data was needed
    pruned: PrunePlan | None = None  # which experts stayed; None: all of them
    advice: tuple[Advice, ...] = ()  # what to know of how they are stored
    md5_shards: int = 0  # of those without a known SHA-256: fetched, and compared with an ETag that is an MD5


def plan(source: Path | Checkpoint, recipe: Recipe, *, layers: int | None = None, kept: Kept | None = None) -> Plan:
    """Decide everything that `quantize` would do. Reads headers only."""
    checkpoint = open_checkpoint(source) if isinstance(source, Path) else source
    if recipe.prune is not None:
        from halfbyte.prune.decide import refuse_pruned_source  # noqa: PLC0415 - most recipes prune nothing

        refuse_pruned_source(checkpoint)
    model = describe(checkpoint)
    refuse_other_config(checkpoint, model)
    made = make_plan(checkpoint, model, recipe, layers=layers, kept=kept)
    refuse_misread(made)
    return made


def quantize(  # noqa: PLR0913 - keyword-only, and none of the options decides a byte but `layers`
    source: Path | Checkpoint,
    out: Path,
    recipe: Recipe,
    *,
    layers: int | None = None,
    stats: Path | None = None,
    prune_plan: PrunePlan | None = None,
    threads: int | None = None,
    device: str = CPU,
    device_memory: int | None = None,
    ray: str | None = None,
    verify_source: bool = True,
    planned: PlanFile | None = None,
    push: Push | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> Result:
    """Make the checkpoint that the recipe describes; the same call goes on where a killed one stopped.

    A plan that was made before (`planned`) is refused where it is not the one that is made now.
    """
    begin, means = time.monotonic(), Means(threads, device, device_memory, ray)
    _check_before(source, out, threads, measures=recipe.calibrate is not None and stats is None)
    made = plan(source, recipe, layers=layers)
    _check_asked(made, planned, stats, prune_plan, means, pushes=push is not None)
    others = made.checkpoint.other_files()  # what cannot be copied is said now, not after the last shard
    seen, weights = source_stamps(made.checkpoint), identity(made.checkpoint)  # in this order: a change between counts
    measured = _statistics(made, out, weights, stats, device, prune_plan)
    made, pruned = _with_experts(made, measured, weights, prune_plan)
    _check_machine(made, measured, means)
    _check_folder(out, made, measured)
    journal = Journal(out / FOLDER / JOURNAL)
    finished = _verified(out, made, journal, push)
    refuse_other_weights(out, made, weights, finished)
    ahead = _ahead(made, finished, measured, means)
    _check_space(out, made, finished, measured, ahead, push)
    watches = (ahead,) if push is None else (ahead, push)
    needed = sorted({shard for job in made.jobs for shard in made.source_shards(job)})
    stamps = verify_shards(made.checkpoint, out, needed, threads, progress) if verify_source else None
    with explained(out, made, journal), alone(out), without_parts(out):  # nothing was written until here
        _check_folder(out, made, measured)  # again, now that nobody else can begin
        _begin(out, made, weights, measured, stamps, pruned)
        with (
            _arithmetic(made),
            ahead,
            push or nullcontext(),
            Runner(made, out, journal, finished, seen=seen, means=means, progress=progress, watches=watches) as runner,
        ):
            for watch in watches:
                watch.begin(finished, runner.say)
            chooser = _chooser(made, measured, weights)
            coverage = run_pending(Work(made, out, runner, measured, chooser, means))
            for watch in watches:
                watch.wait()
        pruned = _seal(out, measured, chooser) or pruned
        write_rest(made if pruned is None else replace(made, kept=pruned.kept()), out, others)
        if push is not None:
            push.rest()
    done = _done(out, made, needed, stamps)
    return replace(done, resumed=len(finished), seconds=time.monotonic() - begin, coverage=coverage, pruned=pruned)


def _done(out: Path, made: Plan, needed: list[str], stamps: Mapping[str, Stamp] | None) -> Result:
    """Return what is known of a run by its plan, and by what was compared of its source."""
    return Result(
        out=out,
        fingerprint=made.fingerprint(),
        shards=len(made.shards),
        resumed=0,
        write_nbytes=made.write_nbytes,
        seconds=0.0,
        source_shards=len(needed),
        verified_shards=verified_count(made.checkpoint, needed, stamps),
        coverage=None,
        advice=stored_advice(made),
        md5_shards=md5_count(made.checkpoint, needed),
    )


def _ahead(made: Plan, finished: Mapping[str, str], measured: Statistics | None, means: Means) -> Ahead:
    """Return what fetches a source that is elsewhere, in the order in which `run_pending` reads it."""
    if means.ray is not None:
        return Ahead.of_others(made, finished)
    measures = measured is not None and measured.file is None
    by_layer = measures or not means.on_cpu or (measured is not None and made.recipe.quantize is not None)
    return Ahead.of_run(made, finished, by_layer=by_layer, measures=measures)


def _check_before(source: Path | Checkpoint, out: Path, threads: int | None, *, measures: bool) -> None:
    """Refuse folders in each other, and a limit of addresses that even a small run may not survive."""
    refuse_nested(source if isinstance(source, Path) else source.root, out)
    refuse_few_addresses(0, threads, measures=measures)


def _check_asked(
    made: Plan,
    planned: PlanFile | None,
    stats: Path | None,
    prune_plan: PrunePlan | None,
    means: Means,
    *,
    pushes: bool,
) -> None:
    """Refuse another plan than was made before, and a pruning of which nothing says who stays."""
    if planned is not None:
        planned.refuse_other(made)
    if means.ray is not None:
        from halfbyte.distributed.asked import refuse_pushing, refuse_unspreadable  # noqa: PLC0415

        refuse_unspreadable(made, means)
        if pushes:
            refuse_pushing()
    if made.recipe.prune is None:
        return
    from halfbyte.prune.decide import refuse_unclear  # noqa: PLC0415

    if prune_plan is None:
        refuse_nothing_to_prune(made)
    refuse_unclear(made, prune_plan, has_statistics=stats is not None, on_cpu=means.on_cpu)


def _with_experts(
    made: Plan, measured: Statistics | None, weights: Mapping[str, str], prune_plan: PrunePlan | None
) -> tuple[Plan, PrunePlan | None]:
    """Return the plan, and which experts stay where that is known before the run."""
    if made.recipe.prune is None:
        return made, None
    from halfbyte.prune.decide import chosen, of_layers  # noqa: PLC0415

    pruned = prune_plan or chosen(made, measured, weights)
    if pruned is None:
        return made, None
    pruned = of_layers(pruned, made.layers)
    return plan(made.checkpoint, made.recipe, layers=made.layers, kept=pruned.kept()), pruned


def _chooser(made: Plan, measured: Statistics | None, weights: Mapping[str, str]) -> LayerByLayer | None:
    """Return what chooses experts while layers are measured, where that is still to be done."""
    if made.chosen or measured is None:
        return None
    from halfbyte.prune.decide import LayerByLayer  # noqa: PLC0415

    return LayerByLayer(made, weights, measured.about)


def _seal(out: Path, measured: Statistics | None, chooser: LayerByLayer | None) -> PrunePlan | None:
    """Seal in the plan what was measured, and which experts stayed where that was chosen on the way."""
    pruned = chooser.plan() if chooser is not None else None
    sealed: dict[str, str] = {}
    if pruned is not None:
        write_prune_plan(out / FOLDER / PRUNE_PLAN, pruned)
        sealed[CHOSEN] = kept_digest(pruned.kept())
    if measured is not None and (statistics := out / FOLDER / STATS / STATS_FILE).is_file():
        sealed[STATS_SHA256] = file_sha256(statistics)
    if sealed:
        write_whole(out / FOLDER / PLAN, json.dumps({**read_plan(out), **sealed}, indent=1).encode())
    return pruned


def _arithmetic(made: Plan) -> AbstractContextManager[None]:
    """Return what a run computes under: compensation factors matrices, and must do it alike on any number of cores."""
    compensates = made.recipe.quantize is not None and made.recipe.quantize.scales == COMPENSATED
    return one_blas_thread() if compensates else nullcontext()


def _check_machine(made: Plan, measured: Statistics | None, means: Means) -> None:
    """Refuse what the machines at hand cannot do: measure elsewhere, hold so much, compute on such a device."""
    if means.ray is not None and measured is not None and measured.file is None:
        from halfbyte.distributed.asked import refuse_measuring_elsewhere  # noqa: PLC0415

        refuse_measuring_elsewhere(made)
    if means.ray is None:
        refuse_few_addresses(peak_memory_nbytes(made, means.threads), means.threads, measures=False)
    if means.on_cpu:
        return
    from halfbyte.cuda.start import check_device, devices_of  # noqa: PLC0415 - only those who have one pay for it

    check_device(made, measured, devices_of(means.device), means.device_memory)


def _statistics(
    made: Plan,
    out: Path,
    weights: Mapping[str, str],
    stats: Path | None,
    device: str,
    prune_plan: PrunePlan | None,
) -> Statistics | None:
    """Return where the statistics of a recipe that needs data come from: a file, or this run."""
    if prune_plan is not None and made.recipe.quantize is None and stats is None:
        return None  # what data would decide is decided
    if made.recipe.calibrate is None and (made.recipe.prune is None or stats is None):
        if stats is not None:
            what = f"recipe '{made.recipe.name}' reads no statistics"
            raise UsageError(what, where="--stats", fix="leave it out, or use a recipe that calibrates")
        return None
    layers = made.layers or made.model.layers
    if stats is not None:
        if made.recipe.quantize is not None and made.recipe.quantize.scales == COMPENSATED:
            what = "compensated weights need more of the inputs than statistics keep"
            raise UsageError(what, where="--stats", fix="leave it out: this recipe measures while it writes")
        from halfbyte.calibrate.given import given  # noqa: PLC0415

        rule = made.recipe.quantize.input_scale if made.recipe.quantize else None
        choosing = made.recipe.quantize is None  # no scale rests on them
        return given(stats, made.checkpoint, weights, layers, rule, choosing=choosing)
    from halfbyte.calibrate.choose import measured_here  # noqa: PLC0415 - most recipes take no forward

    folder = out / FOLDER / STATS
    return measured_here(made.checkpoint, made.model, made.recipe, weights, folder, layers, device=device)


def _check_folder(out: Path, made: Plan, measured: Statistics | None) -> None:
    """The output folder can be made, is empty, or holds the same plan as ours; nothing is written yet."""
    if (out / FOLDER / PLAN).is_file():
        found = read_plan(out)
        refuse_other_plan(found, made, str(out))
        refuse_other_version(out / FOLDER, made.checkpoint)
        if measured is not None:
            refuse_other(found.get("calibration", {}), measured.about, str(out))
    elif out.is_dir() and any(map(is_foreign, out.iterdir())):
        raise UsageError("the output folder is not empty", where=str(out), fix="give a new folder")
    refuse_unwritable(out)


def _begin(
    out: Path,
    made: Plan,
    weights: Mapping[str, str],
    measured: Statistics | None,
    stamps: dict[str, Stamp] | None,
    pruned: PrunePlan | None,
) -> None:
    for stale in out.glob(f"*{PART}"):
        stale.unlink()  # of a run that was killed
    plan = {**made.as_dict(), "roles": [row.as_dict() for row in by_role(made)], "source": weights}
    plan |= {"calibration": dict(measured.about)} if measured else {}
    if pruned is None and made.recipe.prune is None:
        plan |= carry(made.checkpoint.root, out)
    write_origin(out / FOLDER, made.checkpoint)
    write_whole(out / FOLDER / PLAN, json.dumps(plan, indent=1).encode())
    if measured is not None and measured.file is not None:
        (out / FOLDER / STATS).mkdir(exist_ok=True)
        write_whole(out / FOLDER / STATS / STATS_FILE, measured.file)
    if pruned is not None:
        write_prune_plan(out / FOLDER / PRUNE_PLAN, pruned)
    if stamps:
        write_whole(out / FOLDER / VERIFIED, json.dumps(stamps_as_json(stamps), indent=1).encode())


def _verified(out: Path, made: Plan, journal: Journal, push: Push | None) -> dict[str, str]:
    """Return the shards that are final: journalled, of the planned size, and of the journalled hash; here or pushed."""
    sizes = {shard.name: shard.nbytes for shard in made.shards}
    finished: dict[str, str] = {}
    for line in journal.lines():
        name, digest = line.get("shard"), line.get("sha256")
        path = out / str(name)
        if name in sizes and path.is_file() and path.stat().st_size == sizes[name] and file_sha256(path) == digest:
            finished[name] = str(digest)
        elif name in sizes and push is not None and not path.exists() and push.has(str(name), str(digest)):
            finished[str(name)] = str(digest)
    return finished


def _check_space(
    out: Path, made: Plan, finished: dict[str, str], measured: Statistics | None, ahead: Ahead, push: Push | None
) -> None:
    """The disk has room for the shards that are not there, and for hidden states while they are needed."""
    pending = [shard.nbytes for shard in made.shards if shard.name not in finished]
    needed = (sum(pending) if push is None else push.room_nbytes(pending)) + (
        measured.missing_nbytes if measured else 0
    )
    if pending:
        ahead.refuse_full(out, needed + _SPARE_NBYTES, sum(stale.stat().st_size for stale in out.glob(f"*{PART}")))
