"""Statistics alone, on the device: the pass of a plan that writes nothing, so that they are those of `quantize`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from halfbyte.calibrate.given import Say, Statistics
from halfbyte.calibrate.stats import LayerStats
from halfbyte.cuda.start import check_device, check_machine, devices_of, run_on_device
from halfbyte.run import Means, Progress, Runner
from halfbyte.source.read import stamps
from halfbyte.write import Journal

if TYPE_CHECKING:
    from halfbyte.plan.manifest import Plan


class OnDevice:
    """A measurement on one device or several; making one refuses a machine that lacks them."""

    def __init__(self, nothing: Plan, device: str, limit: int | None = None) -> None:
        self._plan, self._devices, self._limit = nothing, devices_of(device), limit
        check_machine(*self._devices)

    def check(self, wanted: Statistics) -> None:
        """Refuse what the device cannot do, and what does not fit there."""
        check_device(self._plan, wanted, self._devices, self._limit)

    def run(self, wanted: Statistics, folder: Path, measured: dict[int, LayerStats], say: Say) -> None:
        """Measure all layers, or those that an earlier run has not; `measured` fills while it is at it."""

        def tell(progress: Progress) -> None:
            say(progress.shard)

        journal = Journal(folder / "journal.jsonl")  # of shards, of which there are none: it is never written
        seen = stamps(self._plan.checkpoint)
        with Runner(self._plan, folder, journal, {}, seen=seen, means=Means(threads=1), progress=tell) as runner:
            run_on_device(self._plan, runner, wanted, self._devices, self._limit, found=measured)
