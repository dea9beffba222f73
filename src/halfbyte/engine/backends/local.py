"""The local backend: run jobs on threads of this machine, in file order, or layer by layer while calibrating."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from halfbyte.machine.resources import refuse_few_addresses
from halfbyte.plan.rules import ENCODE, ROUTED, Job
from halfbyte.plan.summary import peak_memory_nbytes

if TYPE_CHECKING:
    from halfbyte.calibrate.stats import LayerStats
    from halfbyte.calibrate.store import Statistics
    from halfbyte.engine.backends.support import Resources
    from halfbyte.engine.dispatch import Work
    from halfbyte.plan.manifest import Plan


def check_resources(_resources: Resources) -> None:
    """Accept: this machine is available."""


def check_plan(plan: Plan, _measured: Statistics | None, resources: Resources) -> None:
    """Raise if the address-space limit is too low."""
    refuse_few_addresses(peak_memory_nbytes(plan, resources.threads), resources.threads, measures=False)


def run(work: Work) -> Mapping[int, LayerStats]:
    """Run all pending jobs; return the statistics of the run, if it has any."""
    runner, measured, threads = work.runner, work.measured, work.resources.threads
    pending, quantize = runner.pending(), work.plan.recipe.quantize
    if measured is None:
        runner.do(pending)
        return {}
    if measured.file is not None and quantize is None:  # no job depends on the statistics
        runner.do(pending)
        return dict(measured.layers(runner.reader, threads, runner.say, ()))
    from halfbyte.engine.jobs import inputs_from_stats  # noqa: PLC0415

    by_layer: dict[int | None, list[Job]] = {}
    for job in pending:
        by_layer.setdefault(job.layer, []).append(job)
    layers: dict[int, LayerStats] = {}
    unwritten = {job.layer for job in pending if job.layer is not None and job.role == ROUTED and job.action == ENCODE}
    for layer, stats in measured.layers(runner.reader, threads, runner.say, unwritten):
        jobs = by_layer.get(layer, [])
        runner.do(work.chooser.jobs(layer, stats, jobs) if work.chooser else jobs, inputs_from_stats(stats, quantize))
        layers[layer] = replace(stats, hessians=None)  # frees the Hessians
    runner.do(by_layer.get(None, []))
    return layers
