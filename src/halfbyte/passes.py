"""What a run does between its beginning and its end: every job that is pending, here, on a GPU, or on many machines."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from halfbyte.folders import FOLDER
from halfbyte.plan.manifest import Plan
from halfbyte.plan.rules import ENCODE, ROUTED, Job
from halfbyte.run import Means, Runner
from halfbyte.write import write_whole

if TYPE_CHECKING:
    from halfbyte.calibrate.given import Statistics
    from halfbyte.calibrate.report import Report
    from halfbyte.calibrate.stats import LayerStats
    from halfbyte.prune.decide import LayerByLayer

COVERAGE = "coverage.json"  # how many tokens each expert saw


@dataclass(frozen=True, slots=True, eq=False)
class Work:
    """What a run has in hand when everything is checked and begun."""

    made: Plan
    out: Path
    runner: Runner
    measured: Statistics | None
    chooser: LayerByLayer | None  # of experts, where that waits for what is measured
    means: Means


def run_pending(work: Work) -> Report | None:
    """Do every job that is pending: in the order of the files, or layer by layer as they are measured."""
    made, out, runner, measured, means = work.made, work.out, work.runner, work.measured, work.means
    if means.ray is not None:
        from halfbyte.distributed.driver import run_on_ray  # noqa: PLC0415 - most runs have one machine

        layers = run_on_ray(work)
        return _coverage(made, out, layers) if measured is not None else None
    if not means.on_cpu:
        from halfbyte.cuda.start import devices_of, run_on_device  # noqa: PLC0415

        layers, _ = run_on_device(made, runner, measured, devices_of(means.device), means.device_memory)
        return _coverage(made, out, layers) if measured is not None else None
    return _run_here(work)


def _run_here(work: Work) -> Report | None:
    made, out, runner, measured, means = work.made, work.out, work.runner, work.measured, work.means
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
        runner.do(work.chooser.jobs(layer, found, jobs) if work.chooser else jobs, from_data(found, quantize))
        layers[layer] = replace(found, moments=None)  # which are large
    runner.do(by_layer.get(None, []))
    return _coverage(made, out, layers)


def _coverage(made: Plan, out: Path, layers: Mapping[int, LayerStats]) -> Report:
    """Write how the data covered the experts, beside the weights."""
    from halfbyte.calibrate.report import report  # noqa: PLC0415

    coverage = report(layers, made.recipe.quantize.input_scale if made.recipe.quantize else None)
    write_whole(out / FOLDER / COVERAGE, (json.dumps(coverage.as_dict(), indent=1) + "\n").encode())
    return coverage
