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

from halfbyte.calibrate.store import STATS as STATS_FILE
from halfbyte.calibrate.store import refuse_other
from halfbyte.decisions import COMPENSATED, Recipe
from halfbyte.ended import explained
from halfbyte.errors import UsageError
from halfbyte.folders import (
    FOLDER,
    PLAN,
    alone,
    is_foreign,
    read_plan,
    refuse_full,
    refuse_nested,
    refuse_unwritable,
    without_parts,
)
from halfbyte.foreign import read_json
from halfbyte.models.declared import refuse_other_config
from halfbyte.models.model import describe
from halfbyte.numerics.blas import one_blas_thread
from halfbyte.plan.ignore_list import refuse_misread
from halfbyte.plan.manifest import Plan, make_plan, refuse_nothing_to_prune, refuse_other_plan
from halfbyte.plan.pruned import Kept, kept_digest
from halfbyte.plan.rules import ENCODE, ROUTED, Job
from halfbyte.prune.plan_file import PLAN as PRUNE_PLAN
from halfbyte.prune.plan_file import PrunePlan, write_prune_plan
from halfbyte.prune.record import carry
from halfbyte.prune.report import stored_advice
from halfbyte.rest import write_rest
from halfbyte.run import Means, Progress, Runner
from halfbyte.source.checkpoint import Checkpoint, open_checkpoint
from halfbyte.source.identity import identity
from halfbyte.source.known_hashes import known_hashes
from halfbyte.source.read import stamps as source_stamps
from halfbyte.source.verify import Stamp, stamps_as_json, stamps_from_json, verify
from halfbyte.write import PART, Journal, file_sha256, write_whole

if TYPE_CHECKING:
    from halfbyte.advice import Advice
    from halfbyte.calibrate.given import Statistics
    from halfbyte.calibrate.report import Report
    from halfbyte.calibrate.stats import LayerStats
    from halfbyte.plan.file import PlanFile
    from halfbyte.prune.decide import LayerByLayer

CHOSEN = "chosen"  # in plan.json: the digest of the experts that stayed, where they were chosen on the way
JOURNAL = "journal.jsonl"
STATS = "stats"  # a folder: statistics while they are made, and then one file
STATS_SHA256 = "statistics_sha256"  # in plan.json: of that file, as the run left it
COVERAGE = "coverage.json"  # how many tokens each expert saw
CPU = "cpu"
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
    coverage: Report | None  # how the calibration data covered the experts; None: no data was needed
    pruned: PrunePlan | None = None  # which experts stayed; None: all of them
    advice: tuple[Advice, ...] = ()  # what to know of how they are stored


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
    source: Path,
    out: Path,
    recipe: Recipe,
    *,
    layers: int | None = None,
    stats: Path | None = None,
    prune_plan: PrunePlan | None = None,
    threads: int | None = None,
    device: str = CPU,
    device_memory: int | None = None,
    verify_source: bool = True,
    planned: PlanFile | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> Result:
    """Make the checkpoint that the recipe describes; the same call goes on where a killed one stopped.

    A plan that was made before (`planned`) is refused where it is not the one that is made now.
    """
    begin, means = time.monotonic(), Means(threads, device, device_memory)
    refuse_nested(source, out)
    made = plan(source, recipe, layers=layers)
    _check_asked(made, planned, stats, prune_plan, means)
    others = made.checkpoint.other_files()  # what cannot be copied is said now, not after the last shard
    weights, seen = identity(made.checkpoint), source_stamps(made.checkpoint)
    measured = _statistics(made, out, weights, stats, device, prune_plan)
    made, pruned = _with_experts(made, measured, weights, prune_plan)
    _check_device(made, measured, means)
    _check_folder(out, made, measured)
    journal = Journal(out / FOLDER / JOURNAL)
    finished = _verified(out, made, journal)
    _check_source(out, made, weights, finished)
    _check_space(out, made, finished, measured)
    needed = sorted({shard for job in made.jobs for shard in made.source_shards(job)})
    stamps = _verify_source(source, out, needed, threads, progress) if verify_source else None
    with explained(out, made, journal), alone(out), without_parts(out):  # nothing was written until here
        _check_folder(out, made, measured)  # again, now that nobody else can begin
        _begin(out, made, weights, measured, stamps, pruned)
        with (
            _arithmetic(made),
            Runner(made, out, journal, finished, seen=seen, means=means, progress=progress) as runner,
        ):
            chooser = _chooser(made, measured, weights)
            coverage = _run(made, out, runner, measured, chooser, means)
        pruned = _seal(out, measured, chooser) or pruned
        write_rest(made if pruned is None else replace(made, kept=pruned.kept()), out, others)
    return Result(
        out=out,
        fingerprint=made.fingerprint(),
        shards=len(made.shards),
        resumed=len(finished),
        write_nbytes=made.write_nbytes,
        seconds=time.monotonic() - begin,
        source_shards=len(needed),
        verified_shards=None if stamps is None else len(stamps),
        coverage=coverage,
        pruned=pruned,
        advice=stored_advice(made),
    )


def _check_asked(
    made: Plan, planned: PlanFile | None, stats: Path | None, prune_plan: PrunePlan | None, means: Means
) -> None:
    """Refuse another plan than was made before, and a pruning of which nothing says who stays."""
    if planned is not None:
        planned.refuse_other(made)
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


def _check_device(made: Plan, measured: Statistics | None, means: Means) -> None:
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


def _run(
    made: Plan,
    out: Path,
    runner: Runner,
    measured: Statistics | None,
    chooser: LayerByLayer | None,
    means: Means,
) -> Report | None:
    """Do every job that is pending: in the order of the files, or layer by layer as they are measured."""
    if not means.on_cpu:
        return _run_on_device(made, out, runner, measured, means)
    pending = runner.pending()
    if measured is None:
        runner.do(pending)
        return None
    if measured.file is not None and made.recipe.quantize is None:  # nothing waits for a layer's statistics
        runner.do(pending)
        return _coverage(made, out, dict(measured.layers(runner.reader, means.threads, runner.say, ())))
    from halfbyte.transform.from_data import from_data  # noqa: PLC0415

    quantize = made.recipe.quantize
    by_layer: dict[int | None, list[Job]] = {}
    for job in pending:
        by_layer.setdefault(job.layer, []).append(job)
    layers: dict[int, LayerStats] = {}
    unwritten = {job.layer for job in pending if job.layer is not None and job.role == ROUTED and job.action == ENCODE}
    for layer, found in measured.layers(runner.reader, means.threads, runner.say, unwritten):
        jobs = by_layer.get(layer, [])
        runner.do(chooser.jobs(layer, found, jobs) if chooser else jobs, from_data(found, quantize))
        layers[layer] = replace(found, moments=None)  # which are large
    runner.do(by_layer.get(None, []))
    return _coverage(made, out, layers)


def _run_on_device(made: Plan, out: Path, runner: Runner, measured: Statistics | None, means: Means) -> Report | None:
    from halfbyte.cuda.start import devices_of, run_on_device  # noqa: PLC0415

    layers, _ = run_on_device(made, runner, measured, devices_of(means.device), means.device_memory)
    return _coverage(made, out, layers) if measured is not None else None


def _coverage(made: Plan, out: Path, layers: Mapping[int, LayerStats]) -> Report:
    """Write how the data covered the experts, beside the weights."""
    from halfbyte.calibrate.report import report  # noqa: PLC0415

    coverage = report(layers, made.recipe.quantize.input_scale if made.recipe.quantize else None)
    write_whole(out / FOLDER / COVERAGE, (json.dumps(coverage.as_dict(), indent=1) + "\n").encode())
    return coverage


def _check_folder(out: Path, made: Plan, measured: Statistics | None) -> None:
    """The output folder can be made, is empty, or holds the same plan as ours; nothing is written yet."""
    if (out / FOLDER / PLAN).is_file():
        found = read_plan(out)
        refuse_other_plan(found, made, str(out))
        if measured is not None:
            refuse_other(found.get("calibration", {}), measured.about, str(out))
    elif out.is_dir() and any(map(is_foreign, out.iterdir())):
        raise UsageError("the output folder is not empty", where=str(out), fix="give a new folder")
    refuse_unwritable(out)


def _check_source(out: Path, made: Plan, weights: Mapping[str, str], finished: Mapping[str, str]) -> None:
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
        return stamps_from_json(read_json(out / FOLDER / VERIFIED))
    except (OSError, ValueError):
        return {}


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
    plan = {**made.as_dict(), "source": weights, **({"calibration": dict(measured.about)} if measured else {})}
    if pruned is None and made.recipe.prune is None:
        plan |= carry(made.checkpoint.root, out)
    write_whole(out / FOLDER / PLAN, json.dumps(plan, indent=1).encode())
    if measured is not None and measured.file is not None:
        (out / FOLDER / STATS).mkdir(exist_ok=True)
        write_whole(out / FOLDER / STATS / STATS_FILE, measured.file)
    if pruned is not None:
        write_prune_plan(out / FOLDER / PRUNE_PLAN, pruned)
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


def _check_space(out: Path, made: Plan, finished: dict[str, str], measured: Statistics | None) -> None:
    """The disk has room for the shards that are not there, and for hidden states while they are needed."""
    pending = [shard.nbytes for shard in made.shards if shard.name not in finished]
    needed = sum(pending) + (measured.missing_nbytes if measured else 0)
    if pending:
        refuse_full(out, needed + _SPARE_NBYTES, sum(stale.stat().st_size for stale in out.glob(f"*{PART}")))
