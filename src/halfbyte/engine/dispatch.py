"""Run all pending jobs on the selected backend: local threads, GPUs, or a Ray cluster."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from halfbyte.checkpoint.output_folder import FOLDER
from halfbyte.engine.backends import local
from halfbyte.engine.backends.support import CUDA, RAY, Resources
from halfbyte.engine.runner import Runner
from halfbyte.evidence.coverage import Coverage
from halfbyte.plan.manifest import Plan

if TYPE_CHECKING:
    from halfbyte.calibrate.report import Report
    from halfbyte.calibrate.stats import LayerStats
    from halfbyte.calibrate.store import Statistics
    from halfbyte.prune.plan_source import LayerByLayer


@dataclass(frozen=True, slots=True, eq=False)
class Work:
    """Everything that a backend needs to run the pending jobs."""

    plan: Plan
    out: Path
    runner: Runner
    measured: Statistics | None
    chooser: LayerByLayer | None  # selects experts layer by layer, if the selection depends on this run's statistics
    resources: Resources


class Backend(Protocol):
    """A module that runs plans. Its capabilities are in the table of `backends/support.py`."""

    def check_resources(self, resources: Resources, /) -> None:
        """Raise, before weights or data are read, if the GPUs or the cluster are not available."""
        ...

    def check_plan(self, plan: Plan, measured: Statistics | None, resources: Resources, /) -> None:
        """Raise, before anything is written, if the resources do not suffice for a plan."""
        ...

    def run(self, work: Work, /) -> Mapping[int, LayerStats]:
        """Run all pending jobs; return the statistics of the run, if it has any."""
        ...


def backend_of(resources: Resources) -> Backend:
    """Return the selected backend; PyTorch and Ray are imported only for theirs."""
    if resources.backend == RAY:
        from halfbyte.engine.backends.ray import driver  # noqa: PLC0415

        return driver
    if resources.backend == CUDA:
        from halfbyte.engine.backends.cuda import backend  # noqa: PLC0415

        return backend
    return local


def run_pending(work: Work) -> Report | None:
    """Run all pending jobs; with calibration, write and return the expert coverage of its data."""
    layers = backend_of(work.resources).run(work)
    return _coverage(work.plan, work.out, layers) if work.measured is not None else None


def _coverage(plan: Plan, out: Path, layers: Mapping[int, LayerStats]) -> Report:
    """Write the expert coverage of the calibration data to the output folder and return it."""
    from halfbyte.calibrate.report import report  # noqa: PLC0415

    coverage = report(layers, plan.recipe.quantize.input_scale if plan.recipe.quantize else None)
    Coverage(**coverage.summary(), layers=tuple(coverage.layers)).write(out / FOLDER / Coverage.file)
    return coverage
