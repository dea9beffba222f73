"""Run all pending jobs on the selected backend: local threads, GPUs, or a Ray cluster."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from halfbyte.checkpoint.atomic_write import write_whole
from halfbyte.checkpoint.output_folder import FOLDER
from halfbyte.engine.backends.local import Resources, Runner
from halfbyte.plan.manifest import Plan
from halfbyte.plan.rules import ENCODE, ROUTED, Job

if TYPE_CHECKING:
    from halfbyte.calibrate.provided import Statistics
    from halfbyte.calibrate.report import Report
    from halfbyte.calibrate.stats import LayerStats
    from halfbyte.prune.decide import LayerByLayer

COVERAGE = "coverage.json"  # number of tokens that each expert received


@dataclass(frozen=True, slots=True, eq=False)
class Work:
    """Everything that a backend needs to run the pending jobs."""

    plan: Plan
    out: Path
    runner: Runner
    measured: Statistics | None
    chooser: LayerByLayer | None  # selects experts layer by layer, if the selection depends on this run's statistics
    resources: Resources


def run_pending(work: Work) -> Report | None:
    """Run all pending jobs, in file order, or layer by layer while calibrating."""
    plan, out, runner, measured, resources = work.plan, work.out, work.runner, work.measured, work.resources
    if resources.ray is not None:
        from halfbyte.engine.backends.ray.driver import run_on_ray  # noqa: PLC0415 - only for --ray

        layers = run_on_ray(work)
        return _coverage(plan, out, layers) if measured is not None else None
    if not resources.on_cpu:
        from halfbyte.engine.backends.cuda.setup import devices_of, run_on_device  # noqa: PLC0415

        layers, _ = run_on_device(plan, runner, measured, devices_of(resources.device), resources.device_memory)
        return _coverage(plan, out, layers) if measured is not None else None
    return _run_here(work)


def _run_here(work: Work) -> Report | None:
    plan, out, runner, measured, resources = work.plan, work.out, work.runner, work.measured, work.resources
    pending = runner.pending()
    if measured is None:
        runner.do(pending)
        return None
    if measured.file is not None and plan.recipe.quantize is None:  # no job depends on the statistics
        runner.do(pending)
        return _coverage(plan, out, dict(measured.layers(runner.reader, resources.threads, runner.say, ())))
    from halfbyte.methods.layer_inputs import inputs_from_stats  # noqa: PLC0415

    quantize = plan.recipe.quantize
    by_layer: dict[int | None, list[Job]] = {}
    for job in pending:
        by_layer.setdefault(job.layer, []).append(job)
    layers: dict[int, LayerStats] = {}
    unwritten = {job.layer for job in pending if job.layer is not None and job.role == ROUTED and job.action == ENCODE}
    for layer, stats in measured.layers(runner.reader, resources.threads, runner.say, unwritten):
        jobs = by_layer.get(layer, [])
        runner.do(work.chooser.jobs(layer, stats, jobs) if work.chooser else jobs, inputs_from_stats(stats, quantize))
        layers[layer] = replace(stats, moments=None)  # frees the Hessians
    runner.do(by_layer.get(None, []))
    return _coverage(plan, out, layers)


def _coverage(plan: Plan, out: Path, layers: Mapping[int, LayerStats]) -> Report:
    """Write the expert coverage of the calibration data to the output folder and return it."""
    from halfbyte.calibrate.report import report  # noqa: PLC0415

    coverage = report(layers, plan.recipe.quantize.input_scale if plan.recipe.quantize else None)
    write_whole(out / FOLDER / COVERAGE, (json.dumps(coverage.as_dict(), indent=1) + "\n").encode())
    return coverage
