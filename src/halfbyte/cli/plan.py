"""The `halfbyte plan` command."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from halfbyte.checkpoint.remote.address import is_remote
from halfbyte.cli.command import command
from halfbyte.cli.load_options import chosen_cache, chosen_device_memory, chosen_recipe
from halfbyte.errors import CheckFailedError
from halfbyte.machine.device_option import CPU
from halfbyte.options.declare import to_argv
from halfbyte.options.inspect import PlanOptions
from halfbyte.options.shared import Placement, ShardCache
from halfbyte.ui.console import Output

if TYPE_CHECKING:
    from halfbyte.plan.manifest import Plan
    from halfbyte.serve.launch import PlannedFit


@command("plan", PlanOptions, example="halfbyte plan --example kimi-k2.6 -r kimi-k2.6-nvfp4-nvidia --fit 8xB200")
def plan_command(out: Output, options: PlanOptions) -> None:
    """Show what `quantize` would do to SRC: actions, sizes, time.

    Reads the headers, plus 128 MB of weights to measure the disk.
    """
    from halfbyte.checkpoint.output_folder import refuse_nested
    from halfbyte.cli import pipeline_output as show
    from halfbyte.engine.backends.support import Request, Resources, refuse_unsupported
    from halfbyte.engine.pipeline import plan
    from halfbyte.inspect.inspection import open_source
    from halfbyte.machine.interrupts import gc_paused
    from halfbyte.plan.manifest import refuse_nothing_to_prune

    source, file, placement = options.source, options.file, options.placement
    if file is not None and source is not None and not is_remote(source):
        refuse_nested(Path(source), file)
    limit = chosen_device_memory(placement)
    with gc_paused():
        recipe = chosen_recipe(options.recipe, options.changes)
        resources = Resources(device=placement.device, device_memory=limit)
        refuse_unsupported(Request(recipe=recipe, resources=resources, measures=recipe.calibrate is not None))
        fit = _fitter(options.fit)
        checkpoint = open_source(source, options.example, chosen_cache(ShardCache(folder=options.cache_dir)))
        planned = plan(checkpoint, recipe, layers=options.changes.layers)
        refuse_nothing_to_prune(planned)
        seconds = device = None
        if placement.device != CPU:
            from halfbyte.engine.device_plan import on_device
            from halfbyte.plan.machine_speed import measure_disk

            disk = None if options.no_measure else measure_disk(planned, options.to)
            device = on_device(planned, disk, limit, placement.device.count(",") + 1)
            seconds = None if options.no_measure else device.time
        elif not options.no_measure:
            from halfbyte.plan.estimate import estimate
            from halfbyte.plan.machine_speed import measure

            seconds = estimate(planned, measure(planned, options.to))
        fitted = fit(planned) if fit else None
        show.plan(out, planned, file, options.diff, fit=fitted, time=seconds, device=device)
    if fitted is not None and fitted.problem is not None:
        what = f"the output does not fit on {fitted.gpus}: {fitted.problem}" if fitted.fit else fitted.problem
        raise CheckFailedError(what, where="--fit", fix=fitted.advice)
    words = f"--plan {file}" if file is not None else f"-r {options.recipe}"
    on = to_argv(Placement, asdict(placement), ("device", "memory")) if device else ()
    out.hint(f"halfbyte quantize {source or 'SRC'} OUT {' '.join((words, *on))}")


def _fitter(gpus: str | None) -> Callable[[Plan], PlannedFit] | None:
    """Return the function that fits a plan to GPUs. Raise on an unknown GPU before any work."""
    if gpus is None:
        return None
    from halfbyte.serve.gpus import parse_gpus
    from halfbyte.serve.launch import planned_fit

    known = parse_gpus(gpus, where="--fit")
    return lambda plan: planned_fit(plan, known)
