"""The quantization pipeline: open the source, plan, verify, run pending jobs, finalize and report.

Running the same command again resumes: shards that are in the journal are verified and not rewritten.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from halfbyte.calibrate.store import STATS as STATS_FILE
from halfbyte.calibrate.store import refuse_other
from halfbyte.checkpoint.atomic_write import PART, Journal, resumable_error, write_whole
from halfbyte.checkpoint.folder import Checkpoint, open_checkpoint
from halfbyte.checkpoint.hashing import Stamp, file_sha256, stamps_as_json
from halfbyte.checkpoint.identity import identity
from halfbyte.checkpoint.output_folder import (
    FOLDER,
    PLAN,
    VERIFIED,
    is_foreign,
    locked_output,
    read_plan,
    refuse_nested,
    refuse_unwritable,
    without_parts,
)
from halfbyte.checkpoint.reader import shard_stamps as source_stamps
from halfbyte.engine.backends.support import Request, Resources, refuse_unsupported
from halfbyte.engine.dispatch import Work, backend_of, run_pending
from halfbyte.engine.finalize import finalize
from halfbyte.engine.prefetch import Prefetcher, refuse_other_version, write_origin
from halfbyte.engine.runner import Progress, Runner
from halfbyte.engine.source_check import md5_count, refuse_other_weights, verified_count
from halfbyte.engine.source_check import verify_source as verify_shards
from halfbyte.errors import InterruptedRunError, TensorError, UsageError
from halfbyte.families.config_agreement import refuse_other_config
from halfbyte.families.model import describe
from halfbyte.machine.device_option import CPU
from halfbyte.machine.library_settings import one_blas_thread
from halfbyte.machine.resources import refuse_few_addresses
from halfbyte.plan.manifest import Plan, make_plan, refuse_nothing_to_prune, refuse_other_plan
from halfbyte.plan.prune_plan import PLAN as PRUNE_PLAN
from halfbyte.plan.prune_plan import PrunePlan, write_prune_plan
from halfbyte.plan.prune_record import carry
from halfbyte.plan.pruned import Kept, kept_digest
from halfbyte.plan.quantization_config import refuse_misread
from halfbyte.plan.summary import by_role
from halfbyte.prune.report import stored_advice
from halfbyte.recipe.decisions import Recipe

if TYPE_CHECKING:
    from halfbyte.calibrate.report import Report
    from halfbyte.calibrate.store import Statistics
    from halfbyte.degeneracy.loop_test import LoopTest
    from halfbyte.plan.manifest import PlanFile
    from halfbyte.prune.plan_source import LayerByLayer
    from halfbyte.publish.hub.push import Push
    from halfbyte.ui.console import Advice

COMMAND = "command"  # in plan.json: the command line, with SRC and OUT for the folders
CHOSEN = "chosen"  # in plan.json: the digest of the kept experts, if the run itself selected them
JOURNAL = "journal.jsonl"
STATS = "stats"  # folder: per-layer statistics during the run, one file afterwards
STATS_SHA256 = "statistics_sha256"  # in plan.json: the SHA-256 of that file
_SPARE_NBYTES = 1 << 28  # config, index, tokenizer and file-system overhead


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a run."""

    out: Path
    fingerprint: str
    shards: int
    resumed: int
    write_nbytes: int
    seconds: float
    source_shards: int
    verified_shards: int | None  # None: verification was off
    coverage: Report | None  # expert coverage of the calibration data; None: no data needed
    pruned: PrunePlan | None = None  # kept experts; None: all of them
    advice: tuple[Advice, ...] = ()  # about the stored format
    loops: LoopTest | None = None  # loop test of a pruned checkpoint, if `halfbyte.api.prune` ran it
    md5_shards: int = 0  # shards without a known SHA-256 that were verified by the MD5 in their ETag


def plan(source: Path | Checkpoint, recipe: Recipe, *, layers: int | None = None, kept: Kept | None = None) -> Plan:
    """Return the plan that `quantize` would run. Reads only headers."""
    checkpoint = open_checkpoint(source) if isinstance(source, Path) else source
    if recipe.prune is not None:
        from halfbyte.prune.plan_source import refuse_pruned_source  # noqa: PLC0415 - only for pruning recipes

        refuse_pruned_source(checkpoint)
    model = describe(checkpoint)
    refuse_other_config(checkpoint, model)
    run_plan = make_plan(checkpoint, model, recipe, layers=layers, kept=kept)
    refuse_misread(run_plan)
    return run_plan


def quantize(  # noqa: PLR0913 - keyword-only
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
    begins: Callable[[str], None] = lambda phase: None,
    command: Sequence[str] = (),
) -> Result:
    """Write the checkpoint that the recipe describes; the same call resumes an interrupted run.

    The plan must match the plan file `planned`, if given. `progress` is called after every step, `begins` with the name
    of each phase as it starts. `command` is the command line, for the model card.
    """
    start, resources = time.monotonic(), Resources(threads, device, device_memory, ray)
    request = Request(
        recipe=recipe,
        resources=resources,
        measures=_measures(recipe, stats, prune_plan),
        remote=isinstance(source, Checkpoint) and source.remote is not None,
        pushes=push is not None,
    )
    refuse_unsupported(request)
    _check_paths(source, out, threads, measures=request.measures)
    run_plan = plan(source, recipe, layers=layers)
    _check_options(run_plan, planned, stats, prune_plan)
    backend = backend_of(resources)
    backend.check_resources(resources)
    others = run_plan.checkpoint.other_files()  # raises now if a file cannot be copied, not after the last shard
    # In this order, so that a change in between is detected.
    seen, weights = source_stamps(run_plan.checkpoint), identity(run_plan.checkpoint)
    if request.measures:
        begins("reading the calibration data")
    measured = _statistics(run_plan, out, weights, stats, device, prune_plan)
    run_plan, pruned = with_experts(run_plan, measured, weights, prune_plan)
    backend.check_plan(run_plan, measured, resources)
    _check_folder(out, run_plan, measured)
    journal = Journal(out / FOLDER / JOURNAL)
    finished = _verified(out, run_plan, journal, push)
    refuse_other_weights(out, run_plan, weights, finished)
    prefetcher = _prefetcher(run_plan, finished, measured, resources)
    _check_space(out, run_plan, finished, measured, prefetcher, push)
    listeners = (prefetcher,) if push is None else (prefetcher, push)
    needed = sorted({shard for job in run_plan.jobs for shard in run_plan.source_shards(job)})
    begins("verifying the source's shards by SHA-256")
    stamps = verify_shards(run_plan.checkpoint, out, needed, threads, progress) if verify_source else None
    begins("calibrating and quantizing, layer by layer" if measured and measured.file is None else "quantizing")
    with (
        _explain_failures(out, run_plan, journal),
        locked_output(out),
        without_parts(out),
    ):  # nothing is written before this
        _check_folder(out, run_plan, measured)  # again, now that the folder is locked
        _initialize(out, run_plan, weights, measured, stamps, pruned, command)
        with (
            _blas_threads(run_plan),
            prefetcher,
            push or nullcontext(),
            Runner(
                run_plan, out, journal, finished, seen=seen, resources=resources, progress=progress, listeners=listeners
            ) as runner,
        ):
            for listener in listeners:
                listener.begin(finished, runner.say)
            chooser = _chooser(run_plan, measured, weights)
            coverage = run_pending(Work(run_plan, out, runner, measured, chooser, resources))
            for listener in listeners:
                listener.wait()
            runner.save_hashes()
        pruned = _seal(out, measured, chooser) or pruned
        finalize(run_plan if pruned is None else replace(run_plan, kept=pruned.kept()), out, others)
        if push is not None:
            push.rest()
    result = _result(out, run_plan, needed, stamps)
    return replace(result, resumed=len(finished), seconds=time.monotonic() - start, coverage=coverage, pruned=pruned)


def _result(out: Path, run_plan: Plan, needed: list[str], stamps: Mapping[str, Stamp] | None) -> Result:
    """Return the part of the result that follows from the plan and the source verification."""
    return Result(
        out=out,
        fingerprint=run_plan.fingerprint(),
        shards=len(run_plan.shards),
        resumed=0,
        write_nbytes=run_plan.write_nbytes,
        seconds=0.0,
        source_shards=len(needed),
        verified_shards=verified_count(run_plan.checkpoint, needed, stamps),
        coverage=None,
        advice=stored_advice(run_plan),
        md5_shards=md5_count(run_plan.checkpoint, needed),
    )


def _prefetcher(
    run_plan: Plan, finished: Mapping[str, str], measured: Statistics | None, resources: Resources
) -> Prefetcher:
    """Return the prefetcher of a remote source, in the order in which `run_pending` reads."""
    if resources.ray is not None:
        return Prefetcher.of_workers(run_plan, finished)
    measures = measured is not None and measured.file is None
    by_layer = measures or not resources.on_cpu or (measured is not None and run_plan.recipe.quantize is not None)
    return Prefetcher.of_run(run_plan, finished, by_layer=by_layer, measures=measures)


def _check_paths(source: Path | Checkpoint, out: Path, threads: int | None, *, measures: bool) -> None:
    """Raise for nested folders, and for an address-space limit that is too low for any run."""
    refuse_nested(source if isinstance(source, Path) else source.root, out)
    refuse_few_addresses(0, threads, measures=measures)


def _check_options(
    run_plan: Plan,
    planned: PlanFile | None,
    stats: Path | None,
    prune_plan: PrunePlan | None,
) -> None:
    """Raise for a plan that differs from `planned`, and if nothing determines the kept experts."""
    if planned is not None:
        planned.refuse_other(run_plan)
    if run_plan.recipe.prune is None:
        return
    from halfbyte.prune.plan_source import refuse_unclear  # noqa: PLC0415

    if prune_plan is None:
        refuse_nothing_to_prune(run_plan)
    refuse_unclear(run_plan, prune_plan, has_statistics=stats is not None)


def _measures(recipe: Recipe, stats: Path | None, prune_plan: PrunePlan | None) -> bool:
    """Return whether the run calibrates. A pruning plan replaces the data of a recipe that only prunes."""
    return recipe.calibrate is not None and stats is None and (prune_plan is None or recipe.quantize is not None)


def with_experts(
    run_plan: Plan, measured: Statistics | None, weights: Mapping[str, str], prune_plan: PrunePlan | None
) -> tuple[Plan, PrunePlan | None]:
    """Return the plan and the kept experts, if they are known before the run."""
    if run_plan.recipe.prune is None:
        return run_plan, None
    from halfbyte.prune.plan_source import chosen, of_layers  # noqa: PLC0415

    pruned = prune_plan or chosen(run_plan, measured, weights)
    if pruned is None:
        return run_plan, None
    pruned = of_layers(pruned, run_plan.layers)
    return plan(run_plan.checkpoint, run_plan.recipe, layers=run_plan.layers, kept=pruned.kept()), pruned


def _chooser(run_plan: Plan, measured: Statistics | None, weights: Mapping[str, str]) -> LayerByLayer | None:
    """Return the expert selection for pruning during calibration, if it is still open."""
    if run_plan.chosen or measured is None:
        return None
    from halfbyte.prune.plan_source import LayerByLayer  # noqa: PLC0415

    return LayerByLayer(run_plan, weights, measured.about)


def _seal(out: Path, measured: Statistics | None, chooser: LayerByLayer | None) -> PrunePlan | None:
    """Record the digests of the statistics and of the experts that this run selected in plan.json."""
    pruned = chooser.plan() if chooser is not None else None
    digests: dict[str, str] = {}
    if pruned is not None:
        write_prune_plan(out / FOLDER / PRUNE_PLAN, pruned)
        digests[CHOSEN] = kept_digest(pruned.kept())
    if measured is not None and (statistics := out / FOLDER / STATS / STATS_FILE).is_file():
        digests[STATS_SHA256] = file_sha256(statistics)
    if digests:
        write_whole(out / FOLDER / PLAN, json.dumps({**read_plan(out), **digests}, indent=1).encode())
    return pruned


def _blas_threads(run_plan: Plan) -> AbstractContextManager[None]:
    """Limit BLAS to one thread for GPTQ, so that matrix factors do not depend on the number of cores."""
    factors = run_plan.recipe.quantize is not None and run_plan.recipe.quantize.needs_hessians
    return one_blas_thread() if factors else nullcontext()


def _statistics(
    run_plan: Plan,
    out: Path,
    weights: Mapping[str, str],
    stats: Path | None,
    device: str,
    prune_plan: PrunePlan | None,
) -> Statistics | None:
    """Return the statistics that the recipe needs, from a file or measured by this run."""
    if stats is not None:
        return given_statistics(run_plan, weights, stats)
    if run_plan.recipe.calibrate is None or (prune_plan is not None and run_plan.recipe.quantize is None):
        return None  # no data needed, or the pruning plan replaces it
    layers = run_plan.layers or run_plan.model.layers
    from halfbyte.engine.measure_statistics import measured_here  # noqa: PLC0415 - imports torch

    folder = out / FOLDER / STATS
    return measured_here(run_plan.checkpoint, run_plan.model, run_plan.recipe, weights, folder, layers, device=device)


def given_statistics(run_plan: Plan, weights: Mapping[str, str], stats: Path) -> Statistics:
    """Return the statistics in a file; raise if they are of another model, or if the recipe needs others or none."""
    quantize = run_plan.recipe.quantize
    if run_plan.recipe.calibrate is None and run_plan.recipe.prune is None:
        what = f"recipe '{run_plan.recipe.name}' does not use statistics"
        raise UsageError(what, where="--stats", fix="omit --stats, or use a recipe that calibrates")
    if quantize is not None and quantize.needs_hessians:
        what = "GPTQ needs the Hessians of expert inputs, which statistics files do not contain"
        raise UsageError(what, where="--stats", fix="omit --stats: this recipe calibrates while it writes")
    from halfbyte.calibrate.store import loaded_statistics  # noqa: PLC0415

    layers, rule = run_plan.layers or run_plan.model.layers, quantize.input_scale if quantize else None
    choosing = quantize is None  # only for expert selection, not for scales
    return loaded_statistics(stats, run_plan.checkpoint, weights, layers, rule, choosing=choosing)


def _check_folder(out: Path, run_plan: Plan, measured: Statistics | None) -> None:
    """Raise unless the output folder can be created, is empty, or holds the same plan. Writes nothing."""
    if (out / FOLDER / PLAN).is_file():
        record = read_plan(out)
        refuse_other_plan(record, run_plan, str(out))
        refuse_other_version(out / FOLDER, run_plan.checkpoint)
        if measured is not None:
            refuse_other(record.get("calibration", {}), measured.about, str(out))
    elif out.is_dir() and any(map(is_foreign, out.iterdir())):
        raise UsageError("the output folder is not empty", where=str(out), fix="use a new folder")
    refuse_unwritable(out)


def _initialize(  # noqa: PLR0913, PLR0917 - each is recorded in the folder before the first shard
    out: Path,
    run_plan: Plan,
    weights: Mapping[str, str],
    measured: Statistics | None,
    stamps: dict[str, Stamp] | None,
    pruned: PrunePlan | None,
    command: Sequence[str],
) -> None:
    for stale in out.glob(f"*{PART}"):
        stale.unlink()  # left by a killed run
    record = {**run_plan.as_dict(), "roles": [row.as_dict() for row in by_role(run_plan)], "source": weights}
    record |= {"calibration": dict(measured.about)} if measured else {}
    record |= {COMMAND: list(command)} if command else {}
    if pruned is None and run_plan.recipe.prune is None:
        record |= carry(run_plan.checkpoint.root, out)
    write_origin(out / FOLDER, run_plan.checkpoint)
    write_whole(out / FOLDER / PLAN, json.dumps(record, indent=1).encode())
    if measured is not None and measured.file is not None:
        (out / FOLDER / STATS).mkdir(exist_ok=True)
        write_whole(out / FOLDER / STATS / STATS_FILE, measured.file)
    if pruned is not None:
        write_prune_plan(out / FOLDER / PRUNE_PLAN, pruned)
    if stamps:
        write_whole(out / FOLDER / VERIFIED, json.dumps(stamps_as_json(stamps), indent=1).encode())


def _verified(out: Path, run_plan: Plan, journal: Journal, push: Push | None) -> dict[str, str]:
    """Return the finished shards: in the journal, with the planned size and the journaled hash, here or pushed."""
    sizes = {shard.name: shard.nbytes for shard in run_plan.shards}
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
    out: Path,
    run_plan: Plan,
    finished: dict[str, str],
    measured: Statistics | None,
    prefetcher: Prefetcher,
    push: Push | None,
) -> None:
    """Raise if the disk lacks space for the pending shards and the temporary hidden states."""
    pending = [shard.nbytes for shard in run_plan.shards if shard.name not in finished]
    needed = (sum(pending) if push is None else push.room_nbytes(pending)) + (
        measured.missing_nbytes if measured else 0
    )
    if pending:
        prefetcher.refuse_full(out, needed + _SPARE_NBYTES, sum(stale.stat().st_size for stale in out.glob(f"*{PART}")))


@contextmanager
def _explain_failures(out: Path, plan: Plan, journal: Journal) -> Generator[None]:
    """Convert interrupts, tensor errors and OS errors to errors with instructions for resuming."""
    try:
        yield
    except KeyboardInterrupt:
        final = len({line.get("shard") for line in journal.lines()})
        what = f"interrupted; {final} of {len(plan.shards)} shards are complete, and nothing needs cleaning up"
        raise InterruptedRunError(what, where=str(out), fix="run the same command again to resume") from None
    except TensorError as error:
        raise _with_shard(error, plan) from None
    except OSError as error:
        raise resumable_error(error, out) from None


def _with_shard(error: TensorError, plan: Plan) -> TensorError:
    """Add the shard of the tensor to an error."""
    linear = plan.model.linears.get(error.where)
    if linear is None:
        return error
    shards = ", ".join(sorted({part.shard for part in linear.parts.values()}))
    fix = f"{error.fix}; download it again, then run the same command: finished shards are kept"
    return TensorError(error.what, where=f"{shards}: {error.where}", fix=fix)
