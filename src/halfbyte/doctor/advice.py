"""Recommendations of `halfbyte doctor`, derived from the facts about this machine."""

from __future__ import annotations

import sys

from halfbyte.doctor.facts import Disk, Gpu, Machine
from halfbyte.ui.console import Advice

OLDEST_PYTHON = (3, 10)
# The reference model: the size of its release, and of one MoE layer
# (384 experts x 3 matrices of 2048 x 7168 weights at 4.5 bits).
MODEL = "Kimi-K2.6"
MODEL_NBYTES = 595.2e9
LAYER_NBYTES = 384 * 3 * 2048 * 7168 * 4.5 / 8


def advise(machine: Machine, python: tuple[int, ...] = sys.version_info[:2]) -> list[Advice]:
    """Return the recommendations, blocking ones first."""
    advice = [
        *_blocking(machine, python),
        *_about_cpu(machine),
        *_about_memory(machine),
        *_about_gpus(machine),
        *(_about_disk(machine.disk) if machine.disk else ()),
        *_about_serving(machine),
    ]
    return sorted(advice, key=lambda item: item.level != "bad")


def _blocking(machine: Machine, python: tuple[int, ...]) -> list[Advice]:
    advice: list[Advice] = []
    if python < OLDEST_PYTHON:
        oldest = ".".join(map(str, OLDEST_PYTHON))
        advice.append(Advice("bad", f"Python {machine.python} is too old", f"install Python {oldest} or newer"))
    if machine.versions.get("numba") is None:
        advice.append(Advice("bad", "numba is not installed: nothing can be encoded or decoded", "pip install numba"))
    elif "numba" in machine.problems:
        problem = f"numba does not work, so nothing can be encoded or decoded: {machine.problems['numba']}"
        advice.append(Advice("bad", problem, "pip install --force-reinstall numba"))
    return advice


def _about_cpu(machine: Machine) -> list[Advice]:
    cpu = machine.cpu
    advice: list[Advice] = []
    if cpu.flags is not None and "avx2" not in cpu.flags:
        advice.append(Advice("note", "this CPU has no AVX2: the kernels run with narrower vectors"))
    if cpu.usable_cores < cpu.cores:
        advice.append(Advice("note", f"only {cpu.usable_cores:g} of {cpu.cores} cores are usable (affinity or cgroup)"))
    return advice


def _about_memory(machine: Machine) -> list[Advice]:
    memory = machine.memory
    known = [nbytes for nbytes in (memory.available_nbytes, memory.limit_nbytes) if nbytes is not None]
    if not known:
        return []
    room = min(known)
    layer = f"one MoE layer of {MODEL} ({LAYER_NBYTES / 1e9:.1f} GB in INT4)"
    if room < 2 * LAYER_NBYTES:
        text = f"{room / 1e9:.1f} GB of memory is not enough for two copies (source and output) of {layer}"
        return [Advice("note", text)]
    return [Advice("good", f"enough memory for two copies (source and output) of {layer}")]


def _about_gpus(machine: Machine) -> list[Advice]:
    if machine.gpus is None:
        reason = machine.problems.get("torch", "no response")
        return [Advice("note", f"torch does not work, so GPUs are unknown: {reason}")]
    if not machine.gpus:
        advice = [
            Advice("note", "no GPU: formats are converted on the CPU; FP4 tensor cores require Blackwell or MI350")
        ]
        if machine.torch_build == "CPU":
            advice.append(Advice("note", "this torch is a CPU build and cannot detect GPUs"))
        return advice
    archs = {gpu.arch: gpu for gpu in machine.gpus}
    return [_about_gpu(gpu) for gpu in archs.values()]


def _about_gpu(gpu: Gpu) -> Advice:
    if gpu.fp4 is None:
        return Advice("note", f"{gpu.name}: this version does not know whether {gpu.arch} has FP4 tensor cores")
    if gpu.fp4 == "none":
        text = "no FP4 tensor cores; 4-bit weights are dequantized to 16 bits before the multiplication (W4A16)"
        return Advice("note", f"{gpu.name}: {text}")
    return Advice("good", f"{gpu.name}: {gpu.fp4.upper()} tensor cores; choose a recipe that writes {gpu.fp4}")


def _about_disk(disk: Disk) -> list[Advice]:
    advice: list[Advice] = []
    if disk.free_nbytes < MODEL_NBYTES:
        free, needed = disk.free_nbytes / 1e9, MODEL_NBYTES / 1e9
        advice.append(
            Advice("note", f"{free:.0f} GB free: a 4-bit {MODEL} of {needed:.0f} GB does not fit on this disk")
        )
    if disk.filesystem in ("tmpfs", "ramfs"):
        advice.append(Advice("note", f"{disk.folder} is in memory ({disk.filesystem}), not on disk: ignore its speed"))
    elif disk.write_nbytes_per_s and disk.read_nbytes_per_s:
        read_s, write_s = MODEL_NBYTES / disk.read_nbytes_per_s, MODEL_NBYTES / disk.write_nbytes_per_s
        pace = f"reading {MODEL} ({MODEL_NBYTES / 1e9:.0f} GB) at this speed takes {_duration(read_s)}"
        advice.append(Advice("note", f"{pace}, writing it takes {_duration(write_s)}"))
    return advice


def _about_serving(machine: Machine) -> list[Advice]:
    if machine.versions.get("vllm") is None:
        return [Advice("note", "vLLM is not installed: a checkpoint cannot be served from this environment")]
    return []


def _duration(seconds: float) -> str:
    minutes = round(seconds / 60)
    if minutes < 1:
        return "less than a minute"
    hours, rest = divmod(minutes, 60)
    return f"{hours} h {rest} min" if hours else f"{minutes} min"
