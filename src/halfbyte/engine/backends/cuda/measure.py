"""Calibration on the device without a checkpoint: runs a plan without jobs, so the statistics match `quantize`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from halfbyte.calibrate.stats import LayerStats
from halfbyte.calibrate.store import Say, Statistics
from halfbyte.checkpoint.atomic_write import Journal
from halfbyte.checkpoint.reader import shard_stamps
from halfbyte.engine.backends.cuda.setup import check_plan, check_resources, devices_of, run_on_device
from halfbyte.engine.backends.support import Resources
from halfbyte.engine.runner import Progress, Runner

if TYPE_CHECKING:
    from halfbyte.plan.manifest import Plan


class OnDevice:
    """A calibration on one or several devices; the constructor raises if this machine lacks them."""

    def __init__(self, empty_plan: Plan, device: str, limit: int | None = None) -> None:
        self._plan, self._resources = empty_plan, Resources(threads=1, device=device, device_memory=limit)
        check_resources(self._resources)

    def check(self, statistics: Statistics) -> None:
        """Raise if the devices do not support the calibration or lack memory."""
        check_plan(self._plan, statistics, self._resources)

    def run(self, statistics: Statistics, folder: Path, measured: dict[int, LayerStats], say: Say) -> None:
        """Measure the layers that no earlier run has measured; `measured` is filled during the run."""

        def report(progress: Progress) -> None:
            say(progress.shard)

        journal = Journal(folder / "journal.jsonl")  # never written: there are no shards
        seen, resources = shard_stamps(self._plan.checkpoint), Resources(threads=1)
        with Runner(self._plan, folder, journal, {}, seen=seen, resources=resources, progress=report) as runner:
            devices, limit = devices_of(self._resources.device), self._resources.device_memory
            run_on_device(self._plan, runner, statistics, devices, limit, known=measured)
