"""Estimate the run time from measured speeds as the larger of disk time and CPU time.

Reading, computing and writing overlap, so the slower resource determines the time. Reads and writes on one disk are
added. CPU time includes SHA-256 of the output and copies into I/O buffers.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from halfbyte.plan.machine_speed import Kernel, Speeds, kernels
from halfbyte.plan.manifest import Plan
from halfbyte.plan.rules import KEEP
from halfbyte.ui.units import size

ASSUMED_NBYTES_PER_S = 1e9  # for a disk that could not be measured
ASSUMED_WRITING = "; assumed: same disk, same write speed; --to DIR measures it"


@dataclass(frozen=True, slots=True)
class Estimate:
    """Disk and CPU seconds, and the rates they are based on."""

    disk_s: float
    cores_s: float
    cores: int
    read_nbytes_per_s: float | None  # None: assumed
    write_nbytes_per_s: float | None  # None: assumed as fast as reading
    kernel_nbytes_per_s: float | None  # source bytes, on all cores; None if all tensors are copied
    hash_nbytes_per_s: float  # on all cores
    calibration_left_out: bool

    @property
    def seconds(self) -> float:
        """Return the estimated total."""
        return max(self.disk_s, self.cores_s)

    def parts(self) -> list[tuple[str, float]]:
        """Return the times that the total is the maximum of."""
        return [("disk", self.disk_s), ("processors", self.cores_s)]

    def as_dict(self) -> dict[str, Any]:
        """Return the data that `--json` prints."""
        return {
            "seconds": round(self.seconds, 1),
            "disk_s": round(self.disk_s, 1),
            "cores_s": round(self.cores_s, 1),
            "cores": self.cores,
            "measured_read_nbytes_per_s": _whole(self.read_nbytes_per_s),
            "measured_write_nbytes_per_s": _whole(self.write_nbytes_per_s),
            "measured_kernel_nbytes_per_s": _whole(self.kernel_nbytes_per_s),
            "measured_hash_nbytes_per_s": _whole(self.hash_nbytes_per_s),
            "calibration_left_out": self.calibration_left_out,
        }

    def basis(self) -> str:
        """Describe the measured and assumed rates."""
        rates = [("read", self.read_nbytes_per_s), ("write", self.write_nbytes_per_s)]
        rates += [("kernels", self.kernel_nbytes_per_s), ("SHA-256", self.hash_nbytes_per_s)]
        words = [f"{name} {size(round(rate))}/s" for name, rate in rates if rate is not None]
        basis = f"measured: {', '.join(words)} on {self.cores} cores"
        if self.read_nbytes_per_s is None:
            basis += f"; assumed: a disk of {ASSUMED_NBYTES_PER_S / 1e9:.0f} GB/s"
        elif self.write_nbytes_per_s is None:
            basis += ASSUMED_WRITING
        return basis + ("; calibration not included" if self.calibration_left_out else "")


def _whole(rate: float | None) -> int | None:
    return None if rate is None else round(rate)


def estimate(plan: Plan, speeds: Speeds) -> Estimate:
    """Estimate the time of a plan at these speeds."""
    read, written = plan.read_nbytes, plan.write_nbytes
    read_rate = speeds.read_nbytes_per_s or ASSUMED_NBYTES_PER_S
    write_rate = speeds.write_nbytes_per_s or read_rate
    disk = (read / read_rate, written / write_rate)
    weights: Counter[Kernel] = Counter()
    for kernel, linear in kernels(plan):
        weights[kernel] += linear.weights
    kernel_s = sum(number * speeds.core_s_per_weight[kernel] for kernel, number in weights.items())
    changed = sum(job.read_nbytes for job in plan.jobs if job.action != KEEP)
    io_s = read * speeds.core_s_per_read_byte + written * speeds.core_s_per_copied_byte
    return Estimate(
        disk_s=sum(disk) if speeds.same_disk else max(disk),
        cores_s=(kernel_s + io_s + written * speeds.core_s_per_hashed_byte) / speeds.cores,
        cores=speeds.cores,
        read_nbytes_per_s=speeds.read_nbytes_per_s,
        write_nbytes_per_s=speeds.write_nbytes_per_s,
        kernel_nbytes_per_s=changed * speeds.cores / kernel_s if kernel_s else None,
        hash_nbytes_per_s=speeds.cores / speeds.core_s_per_hashed_byte,
        calibration_left_out=plan.recipe.calibrate is not None,
    )
