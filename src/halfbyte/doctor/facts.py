"""Collect facts about this machine. Unknown facts are None and print as "unknown"."""

from __future__ import annotations

import json
import math
import os
import platform
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from halfbyte.machine.python_path import OWN_PYTHON
from halfbyte.machine.resources import Memory, cpu_limit, memory_facts, proc_table

MEASURED_NBYTES = 256 * 1024**2
BLOCK_NBYTES = 4 * 1024**2
PROBE_TIMEOUT_S = 120
SHOWN_FLAGS = ("avx2", "avx512f", "avx512_bf16", "avx512_vnni", "amx_tile", "amx_int8", "amx_bf16")
PACKAGES = ("torch", "numba", "numpy", "transformers", "triton", "vllm", "ray", "lm_eval", "nvidia-modelopt")

# FP4 formats of GPU tensor cores. Hopper and older have none: 4-bit weights are dequantized first (W4A16).
FP4_BY_ARCH = {
    "sm_100": "nvfp4",  # B200
    "sm_103": "nvfp4",  # B300
    "sm_110": "nvfp4",  # Jetson Thor
    "sm_120": "nvfp4",  # RTX PRO 6000, RTX 50
    "sm_121": "nvfp4",  # DGX Spark
    "gfx950": "mxfp4",  # MI350, MI355
}
NO_FP4_ARCHES = ("sm_70", "sm_75", "sm_80", "sm_86", "sm_87", "sm_89", "sm_90", "gfx90a", "gfx940", "gfx941", "gfx942")


@dataclass(frozen=True, slots=True)
class Cpu:
    """The CPU: model, usable cores, features, and numba's compilation target."""

    model: str | None
    cores: int
    usable_cores: float
    flags: tuple[str, ...] | None
    numba_target: str | None
    numba_threads: int | None


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU that torch detects."""

    name: str
    arch: str
    memory_nbytes: int

    @property
    def fp4(self) -> str | None:
        """Return the FP4 format of its tensor cores: nvfp4, mxfp4 or none; None if the architecture is unknown."""
        return FP4_BY_ARCH.get(self.arch) or ("none" if self.arch in NO_FP4_ARCHES else None)


@dataclass(frozen=True, slots=True)
class Disk:
    """The disk of a folder, measured with a file of 256 MiB; `problem` is the reason if that failed."""

    folder: str
    filesystem: str | None
    free_nbytes: int
    write_nbytes_per_s: float | None = None
    read_nbytes_per_s: float | None = None
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class Machine:
    """Hardware, limits and installed packages."""

    python: str
    system: str
    cpu: Cpu
    memory: Memory
    gpus: tuple[Gpu, ...] | None
    torch_build: str | None
    disk: Disk | None
    versions: dict[str, str | None]
    problems: dict[str, str]
    sandbox: str | None = None  # for running model-generated code

    def as_dict(self) -> dict[str, Any]:
        """Return the data that `--json` prints."""
        value = asdict(self)
        for row, gpu in zip(value["gpus"] or (), self.gpus or (), strict=True):
            row["fp4"] = gpu.fp4
        return value

    def lines(self) -> list[tuple[str, str]]:
        """Return the labels and texts to print."""
        cpu, memory = self.cpu, self.memory
        flags = "unknown" if cpu.flags is None else ", ".join(cpu.flags) or "none of AVX2, AVX512, AMX"
        tight = memory.limit_nbytes is not None and memory.limit_nbytes < (memory.total_nbytes or math.inf)
        limit = f", limited to {_gb(memory.limit_nbytes)}" if tight else ""
        installed = {name: text for name, text in self.versions.items() if text}
        missing = [name for name, text in self.versions.items() if not text]
        return [
            ("system", f"{self.system}, Python {self.python}"),
            ("cpu", f"{cpu.model or 'unknown'}: {cpu.cores} cores, {cpu.usable_cores:g} usable"),
            ("cpu features", flags),
            ("numba", f"compiles for {cpu.numba_target or 'unknown'}, {cpu.numba_threads or 'unknown'} threads"),
            ("memory", f"{_gb(memory.total_nbytes)}, {_gb(memory.available_nbytes)} available{limit}"),
            *_gpu_lines(self.gpus),
            *_disk_lines(self.disk),
            ("sandbox", self.sandbox or "unknown"),
            ("installed", ", ".join(f"{name} {text}" for name, text in installed.items()) or "none"),
            ("not installed", ", ".join(missing) or "-"),
        ]


def examine(folder: Path | str | None = None) -> Machine:
    """Collect the facts; measure the disk of `folder`, if given."""
    answers = _probe({"numba": numba_facts, "torch": torch_facts, "sandbox": sandbox_facts})
    gpus = answers["torch"].get("gpus")
    return Machine(
        python=platform.python_version(),
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        cpu=cpu_facts(answers["numba"]),
        memory=memory_facts(),
        gpus=None if gpus is None else tuple(Gpu(**gpu) for gpu in gpus),
        torch_build=answers["torch"].get("build"),
        disk=None if folder is None else disk_facts(Path(folder)),
        versions={name: package_version(name) for name in PACKAGES},
        problems={name: answer["problem"] for name, answer in answers.items() if "problem" in answer},
        sandbox=answers["sandbox"].get("tier"),
    )


def cpu_facts(numba: dict[str, Any], root: Path = Path("/")) -> Cpu:
    """Read the CPU's model and features, and the number of usable cores."""
    cpuinfo = proc_table(root / "proc/cpuinfo")
    all_flags = cpuinfo.get("flags", "").split()
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return Cpu(
        model=cpuinfo.get("model name") or platform.processor() or None,
        cores=os.cpu_count() or 1,
        usable_cores=min(affinity, cpu_limit(root) or affinity),
        flags=tuple(flag for flag in SHOWN_FLAGS if flag in all_flags) if all_flags else None,
        numba_target=numba.get("target"),
        numba_threads=numba.get("threads"),
    )


def disk_facts(folder: Path, nbytes: int = MEASURED_NBYTES) -> Disk:
    """Time writing and reading an unnamed temporary file in `folder`."""
    free_nbytes = shutil.disk_usage(folder).free
    disk = Disk(str(folder.resolve()), _filesystem(folder), free_nbytes)
    if free_nbytes < 2 * nbytes:
        return replace(disk, problem="not enough free space to measure")
    try:
        # TemporaryFile opens with O_TMPFILE or unlinks at once, so that even SIGKILL leaves no file behind.
        with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
            write_s = _seconds(lambda: _write(file.fileno(), nbytes))
            if hasattr(os, "posix_fadvise"):  # drop the written pages, so that reads reach the disk
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            read_s = _seconds(lambda: _read(file.fileno()))
    except OSError as error:
        return replace(disk, problem=error.strerror or str(error))
    return replace(disk, write_nbytes_per_s=nbytes / write_s, read_nbytes_per_s=nbytes / read_s)


def _write(descriptor: int, nbytes: int) -> None:
    block = os.urandom(BLOCK_NBYTES)  # random, to defeat compression
    for start in range(0, nbytes, BLOCK_NBYTES):
        os.write(descriptor, memoryview(block)[: nbytes - start])
    os.fsync(descriptor)


def _read(descriptor: int) -> None:
    os.lseek(descriptor, 0, os.SEEK_SET)
    while os.read(descriptor, BLOCK_NBYTES):
        pass


def _seconds(work: Callable[[], None]) -> float:
    start = time.perf_counter()
    work()
    return max(time.perf_counter() - start, 1e-9)


def _filesystem(folder: Path, mounts: Path = Path("/proc/mounts")) -> str | None:
    try:
        rows = [line.split() for line in mounts.read_text().splitlines()]
    except OSError:
        return None
    resolved = folder.resolve()
    enclosing = [(len(row[1]), row[2]) for row in rows if resolved.is_relative_to(row[1])]
    return max(enclosing, default=(0, None))[1]


def _probe(functions: dict[str, Callable[[], dict[str, Any]]]) -> dict[str, dict[str, Any]]:
    """Run functions of this module in parallel processes, so that a broken torch or numba cannot crash this one."""
    # The current folder is removed from sys.path, so that a numba.py there is not imported.
    code = "import sys; sys.path = [p for p in sys.path if p]; import json; from halfbyte.doctor import facts as d; "
    code += "print(json.dumps(d.{}()))"
    running = {
        name: subprocess.Popen(
            [*OWN_PYTHON, "-c", code.format(function.__name__)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for name, function in functions.items()
    }
    try:
        return {name: _answer(process) for name, process in running.items()}
    finally:
        for process in running.values():
            process.kill()


def _answer(process: subprocess.Popen[str]) -> dict[str, Any]:
    try:
        stdout, stderr = process.communicate(timeout=PROBE_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return {"problem": f"no response within {PROBE_TIMEOUT_S} s"}
    if process.returncode == 0:
        return json.loads(stdout.splitlines()[-1])
    lines = stderr.strip().splitlines()
    return {"problem": lines[-1] if lines else f"failed with exit code {process.returncode}"}


def numba_facts() -> dict[str, Any]:
    """Import numba and return its target CPU and thread count. Run this in a separate process."""
    import numba  # pyright: ignore[reportMissingTypeStubs]
    from llvmlite import binding  # pyright: ignore[reportMissingTypeStubs]

    target: str = numba.config.CPU_NAME or binding.get_host_cpu_name()  # pyright: ignore
    return {"target": target, "threads": int(numba.config.NUMBA_NUM_THREADS)}  # pyright: ignore


def torch_facts() -> dict[str, Any]:
    """Import torch and return its build and GPUs. Run this in a separate process."""
    import torch

    cuda: Any = torch.cuda
    toolkits = {"CUDA": torch.version.cuda, "ROCm": torch.version.hip}
    build = next((f"{name} {text}" for name, text in toolkits.items() if text), "CPU")
    devices = [cuda.get_device_properties(i) for i in range(cuda.device_count())]
    gpus = [{"name": gpu.name, "arch": _arch(gpu), "memory_nbytes": gpu.total_memory} for gpu in devices]
    return {"build": build, "gpus": gpus}


def sandbox_facts() -> dict[str, Any]:
    """Find the sandbox that this machine offers for model-generated code."""
    from halfbyte.sandbox.tiers import find_tier

    return {"tier": find_tier().sentence}


def _arch(gpu: Any) -> str:
    rocm = getattr(gpu, "gcnArchName", "")
    return rocm.partition(":")[0] if rocm.startswith("gfx") else f"sm_{gpu.major}{gpu.minor}"


def package_version(package: str) -> str | None:
    """Return the version of an installed package, or None."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _gb(nbytes: float | None) -> str:
    return "unknown" if nbytes is None else f"{nbytes / 1e9:.1f} GB"


def _gpu_lines(gpus: tuple[Gpu, ...] | None) -> list[tuple[str, str]]:
    if not gpus:
        return [("gpu", "unknown" if gpus is None else "none detected by torch")]
    return [
        (f"gpu {i}", f"{gpu.name}, {gpu.arch}, {_gb(gpu.memory_nbytes)}, FP4 tensor cores: {gpu.fp4 or 'unknown'}")
        for i, gpu in enumerate(gpus)
    ]


def _disk_lines(disk: Disk | None) -> list[tuple[str, str]]:
    if disk is None:
        return [("disk", "not measured")]
    summary = f"{disk.folder} ({disk.filesystem or 'unknown'}), {_gb(disk.free_nbytes)} free"
    if disk.write_nbytes_per_s is None or disk.read_nbytes_per_s is None:
        return [("disk", f"{summary}; not measured: {disk.problem}")]
    speeds = f"writes {disk.write_nbytes_per_s / 1e9:.2f} GB/s, reads {disk.read_nbytes_per_s / 1e9:.2f} GB/s"
    return [("disk", f"{summary}; {speeds}")]
