"""Sample power and clocks of the local GPUs with nvidia-smi while a block runs."""

from __future__ import annotations

import shutil
import subprocess
import threading
from collections.abc import Sequence
from statistics import fmean
from types import TracebackType
from typing import Any

EVERY_S = 1.0
_ANSWERS_WITHIN_S = 10.0
FIELDS = ("power.draw", "clocks.sm", "clocks.mem", "temperature.gpu", "utilization.gpu")
_OURS = ("watts", "sm_mhz", "memory_mhz", "celsius", "busy_percent")


class GpuPower:
    """A context that samples the GPUs every second and sets `summary` on exit, to None without nvidia-smi."""

    def __init__(self, *, wanted: bool) -> None:
        self._program = shutil.which("nvidia-smi") if wanted else None
        self._samples: list[list[dict[str, float | None]]] = []
        self._done = threading.Event()
        self._thread: threading.Thread | None = None
        self.summary: dict[str, Any] | None = None

    def __enter__(self) -> GpuPower:
        if self._program is not None:
            self._thread = threading.Thread(target=self._sample, daemon=True)
            self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._done.set()
        if self._thread is not None:
            self._thread.join(_ANSWERS_WITHIN_S)
        self.summary = over_time(self._samples)

    def _sample(self) -> None:
        command = [str(self._program), f"--query-gpu={','.join(FIELDS)}", "--format=csv,noheader,nounits"]
        while not self._done.is_set():
            try:
                query = subprocess.run(command, capture_output=True, text=True, timeout=_ANSWERS_WITHIN_S, check=True)
            except (OSError, subprocess.SubprocessError):
                return
            self._samples.append(read_gpus(query.stdout))
            self._done.wait(EVERY_S)


def read_gpus(text: str) -> list[dict[str, float | None]]:
    """Parse nvidia-smi's output, one line per GPU. Missing values ("[N/A]") are None."""
    return [dict(zip(_OURS, map(_number, line.split(",")), strict=False)) for line in text.splitlines() if line.strip()]


def over_time(samples: Sequence[Sequence[dict[str, float | None]]]) -> dict[str, Any] | None:
    """Return the number of GPUs and the mean of each value over GPUs and time. Power is the sum over GPUs."""
    if not samples or not samples[0]:
        return None
    means: dict[str, Any] = {"gpus": len(samples[0]), "samples": len(samples)}
    for name in _OURS:
        known = [value for sample in samples for gpu in sample if (value := gpu.get(name)) is not None]
        means[name] = fmean(known) * (len(samples[0]) if name == "watts" else 1) if known else None
    return means


def _number(text: str) -> float | None:
    try:
        return float(text.strip())
    except ValueError:
        return None
