"""Measure the disk and CPU speed of this machine within two seconds.

Kernels run on random weights of the source's format and width, on all cores at once, as in a run. The disk is read
from one of the source's shards with the same reader and number of threads. Speeds that cannot be measured are None.
"""

from __future__ import annotations

import hashlib
import math
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from halfbyte.checkpoint.folder import Checkpoint
from halfbyte.checkpoint.headers import TensorInfo
from halfbyte.checkpoint.reader import NUMPY_DTYPES, Reader
from halfbyte.families.linears import StoredLinear
from halfbyte.formats.codec import amax, decode
from halfbyte.formats.encoded import Encoded
from halfbyte.formats.format import Part
from halfbyte.formats.registry import FORMATS
from halfbyte.machine.direct_io import File
from halfbyte.machine.resources import run_threads, usable_cores
from halfbyte.methods.method import Group, Linear
from halfbyte.methods.registry import METHODS
from halfbyte.plan.manifest import Plan
from halfbyte.plan.rules import DECODE, ENCODE, KEEP
from halfbyte.recipe.decisions import Recipe

_KERNEL_S = 0.2  # per kernel, after warm-up
_ROUNDS = 3
_DISK_S = 0.5  # each for reading and writing
_DISK_NBYTES = 1 << 27
_PIECE_NBYTES = 1 << 23  # about the size of one expert tensor
_SAMPLE_WEIGHTS = 1 << 22
_ROWS = 128


class Kernel(NamedTuple):
    """The work on linears with the same storage; if `fused`, the amax of the group is computed first."""

    action: str
    format: str
    group: int
    fused: bool
    method: str  # scale method; empty if not encoding


@dataclass(frozen=True, slots=True)
class Disk:
    """Disk throughput; `write_nbytes_per_s` is None without an output folder and then assumed equal to reading."""

    read_nbytes_per_s: float
    write_nbytes_per_s: float | None
    same_disk: bool

    def seconds(self, read: int, written: int) -> float:
        """Return the time for reading and writing; on the same disk the times are added."""
        times = read / self.read_nbytes_per_s, written / (self.write_nbytes_per_s or self.read_nbytes_per_s)
        return sum(times) if self.same_disk else max(times)


@dataclass(frozen=True, slots=True)
class Speeds:
    """Disk throughput in total, and CPU time per core with all cores busy."""

    cores: int
    read_nbytes_per_s: float | None
    write_nbytes_per_s: float | None
    same_disk: bool
    core_s_per_read_byte: float
    core_s_per_copied_byte: float
    core_s_per_hashed_byte: float
    core_s_per_weight: Mapping[Kernel, float]


def measure(plan: Plan, out: Path | None) -> Speeds:
    """Measure the speeds that determine this plan's run time; `out` is the output folder."""
    cores = usable_cores()
    read, read_core_s = _read_speed(plan.checkpoint, run_threads())
    folder = _existing(out) if out is not None else None
    block = np.random.default_rng(0).integers(0, 256, _PIECE_NBYTES, np.uint8)
    target = np.empty((cores, _PIECE_NBYTES), np.uint8)
    copy = _core_seconds(lambda core: np.copyto(target[core], block), cores, _KERNEL_S / 4) / block.size
    hashed = _core_seconds(lambda _: hashlib.sha256(block.data), cores, _KERNEL_S / 2) / block.size
    return Speeds(
        cores=cores,
        read_nbytes_per_s=read,
        write_nbytes_per_s=_write_speed(folder) if folder is not None else None,
        same_disk=folder is None or read is None or folder.stat().st_dev == plan.checkpoint.root.stat().st_dev,
        core_s_per_read_byte=copy if read is None else read_core_s,
        core_s_per_copied_byte=copy,
        core_s_per_hashed_byte=hashed,
        core_s_per_weight={
            kernel: _kernel_speed(kernel, linear, plan.recipe, cores) for kernel, linear in _samples(plan).items()
        },
    )


def measure_disk(plan: Plan, out: Path | None) -> Disk | None:
    """Measure the disks only; return None if the source is not on a local disk."""
    read, _ = _read_speed(plan.checkpoint, run_threads())
    if read is None:
        return None
    folder = _existing(out) if out is not None else None
    same = folder is None or folder.stat().st_dev == plan.checkpoint.root.stat().st_dev
    return Disk(read, _write_speed(folder) if folder is not None else None, same)


def kernels(plan: Plan) -> Iterator[tuple[Kernel, StoredLinear]]:
    """Yield each linear that is decoded or encoded, with its kernel."""
    quantize = plan.recipe.quantize
    for job in plan.jobs:
        if job.action != KEEP:
            method = quantize.method_of(job.role).name if quantize is not None and job.action == ENCODE else ""
            for group in job.fused_groups():
                for linear in group:
                    yield Kernel(job.action, linear.format, linear.group, len(group) > 1, method), linear


def _samples(plan: Plan) -> dict[Kernel, StoredLinear]:
    samples: dict[Kernel, StoredLinear] = {}
    for kernel, linear in kernels(plan):
        samples.setdefault(kernel, linear)
    return samples


def _core_seconds(work: Callable[[int], object], cores: int, seconds: float) -> float:
    """Return the CPU time of one call while all cores run it: the best of several rounds after a warm-up.

    CPU time excludes the load of other programs, which may not last for the whole run.
    """

    def repeat(core: int) -> tuple[float, int]:
        calls, start = 0, time.thread_time()
        while calls == 0 or time.perf_counter() < end:
            work(core)
            calls += 1
        return time.thread_time() - start, calls

    best, end = math.inf, 0.0
    with ThreadPoolExecutor(cores) as pool:
        for number in range(1 + _ROUNDS):
            end = time.perf_counter() + (seconds / _ROUNDS if number else 0)
            spent, calls = zip(*pool.map(repeat, range(cores)), strict=True)
            best = min(best, sum(spent) / sum(calls))
    return best


def _kernel_speed(kernel: Kernel, linear: StoredLinear, recipe: Recipe, cores: int) -> float:
    """Return the seconds of a core per weight; methods whose time grows with the width are timed on fewer columns."""
    if kernel.action == DECODE:
        source = invented(linear)
        return _core_seconds(lambda _: decode(source, threads=1), cores, _KERNEL_S) / math.prod(source.shape)
    assert recipe.quantize is not None
    method, format = METHODS[kernel.method], recipe.quantize.format
    width = min(linear.shape[1], method.sample_width or linear.shape[1])
    source = invented(replace(linear, shape=(linear.shape[0], width)))
    encode = method.encoder(method.sample(width) if method.sample is not None else None)

    def work(_: int) -> object:
        shared = amax(source, threads=1) if kernel.fused else None
        return encode(Group(format, [Linear("sample", source, shared)]))

    return _core_seconds(work, cores, _KERNEL_S) / math.prod(source.shape) * linear.shape[1] / width


def invented(linear: StoredLinear) -> Encoded:
    """Return random finite weights in this linear's format and width, at most about four million."""
    n, k = linear.shape
    shape = min(n, max(_ROWS, _SAMPLE_WEIGHTS // k // _ROWS * _ROWS)), k
    random = np.random.default_rng(0)
    tensors = {part.suffix: _tensor(part, linear, shape, random) for part in FORMATS[linear.format].tensors}
    return Encoded(linear.format, shape, tensors)


def _tensor(part: Part, linear: StoredLinear, shape: tuple[int, int], random: np.random.Generator) -> NDArray[Any]:
    if part.suffix == "weight_shape":
        return np.array(shape, np.int32)
    grouped = bool(FORMATS[linear.format].groups) and part.columns == FORMATS[linear.format].block
    size = (shape[0], shape[1] // linear.group) if grouped else part.shape(*shape)
    dtype = linear.parts[part.suffix].dtype
    scale = part.suffix != FORMATS[linear.format].tensors[0].suffix
    if dtype in ("F32", "F16", "BF16"):
        values = random.standard_normal(size, np.float32)
        values = np.exp(values / 4 - 5) if scale else values / 50  # scales of one tensor have similar magnitudes
        return (
            (values.view(np.uint32) >> 16).astype(np.uint16) if dtype == "BF16" else values.astype(NUMPY_DTYPES[dtype])
        )
    bits = random.integers(0, 256, (*size, np.dtype(NUMPY_DTYPES[dtype]).itemsize), np.uint8)
    if dtype == "F8_E4M3":
        bits = bits & 0x3F | 0x08 if scale else bits & 0xBF  # no NaN; scales are positive
    elif dtype == "U8" and scale:
        bits = bits & 0x07 | 0x78  # E8M0 near one
    return bits.view(NUMPY_DTYPES[dtype]).reshape(size)


def _read_speed(checkpoint: Checkpoint, threads: int) -> tuple[float | None, float]:
    """Return bytes per second (None without a local file) and CPU seconds per byte, reading from the largest shard."""
    shard = max(checkpoint.shards, key=lambda name: checkpoint.shards[name])
    if checkpoint.remote is not None or not (checkpoint.root / shard).is_file():
        return None, 0.0
    nbytes = min(_DISK_NBYTES, checkpoint.shards[shard])
    first = (checkpoint.shards[shard] - nbytes) // 2
    _drop_page_cache(checkpoint.root / shard, first, nbytes)
    starts = range(first, first + nbytes - nbytes % _PIECE_NBYTES, _PIECE_NBYTES) or range(first, first + 1)
    piece = min(_PIECE_NBYTES, nbytes)
    start_s, core_start_s = time.perf_counter(), time.process_time()

    with Reader(checkpoint) as reader, ThreadPoolExecutor(threads) as pool:

        def read(start: int) -> int:
            if time.perf_counter() - start_s > _DISK_S:
                return 0
            return reader.raw(TensorInfo("", "U8", (piece,), shard, start, start + piece)).size

        done = sum(pool.map(read, starts))
        seconds, core_s = time.perf_counter() - start_s, time.process_time() - core_start_s
    return done / max(seconds, 1e-9), core_s / max(done, 1)


def _drop_page_cache(path: Path, begin: int, nbytes: int) -> None:
    """Drop a range of a file from the page cache, so that reads reach the disk."""
    if hasattr(os, "posix_fadvise"):
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        os.posix_fadvise(file, begin, nbytes, os.POSIX_FADV_DONTNEED)
        os.close(file)


def _write_speed(folder: Path) -> float | None:
    """Return bytes per second when writing a file like a shard; None if the folder is not writable."""
    block = memoryview(os.urandom(_PIECE_NBYTES))  # incompressible, for compressing file systems
    try:
        with tempfile.TemporaryDirectory(dir=folder, prefix=".halfbyte-") as scratch:
            file = File(Path(scratch) / "speed", create=True)
            try:
                file.reserve(_DISK_NBYTES)
                done, start = 0, time.perf_counter()
                while done < _DISK_NBYTES and time.perf_counter() - start < _DISK_S:
                    file.write(block, done)
                    done += len(block)
                file.sync()
                return done / (time.perf_counter() - start)
            finally:
                file.close()
    except OSError:
        return None


def _existing(folder: Path) -> Path:
    """Return the nearest existing parent folder, or the folder itself."""
    candidates: Iterable[Path] = (folder.absolute(), *folder.absolute().parents)
    return next(path for path in candidates if path.is_dir())
