"""Ways to read a checkpoint and to write one, timed on the same file: why machine/direct_io.py is as it is.

    python benchmarks/bench_reads.py FILE [--machine NAME]     FILE: a large file on the disk to measure, some GB

Each way reads the same bytes in 16 MiB pieces on 1, 2 and 4 threads, starting with the file out of the page cache; the
writers fill a file beside it and end with fsync. CPU seconds are this process's, faults and copies in the kernel too.
Writes benchmarks/results/reads_<machine>_<yyyymm>.{json,md}.
"""

import argparse
import datetime
import mmap
import os
import threading
import time
from pathlib import Path

import numpy as np
from bench_numerics import cpu_model, save

from halfbyte.machine.direct_io import aligned

PIECE = 1 << 24
MOST = 6 << 30
THREADS = (1, 2, 4)


def pread(path, begin, end):
    file, buffer = os.open(path, os.O_RDONLY), aligned(PIECE)
    for at in range(begin, end, PIECE):
        os.preadv(file, [buffer], at)
    os.close(file)


def pread_forget(path, begin, end):
    file, buffer = os.open(path, os.O_RDONLY), aligned(PIECE)
    for at in range(begin, end, PIECE):
        os.preadv(file, [buffer], at)
        os.posix_fadvise(file, at, PIECE, os.POSIX_FADV_DONTNEED)
    os.close(file)


def direct(path, begin, end):
    file, buffer = os.open(path, os.O_RDONLY | os.O_DIRECT), aligned(PIECE)
    for at in range(begin, end, PIECE):
        os.preadv(file, [buffer], at)
    os.close(file)


def mapped(path, begin, end):
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as memory:
        whole, buffer = np.frombuffer(memory, np.uint8), aligned(PIECE)
        for at in range(begin, end, PIECE):
            buffer[:] = whole[at : at + PIECE]
        del whole


def writer(flags):
    def write(path, begin, end):
        file, buffer = os.open(path.with_name("bench_reads.tmp"), os.O_RDWR | os.O_CREAT | flags, 0o600), aligned(PIECE)
        buffer[:] = np.random.default_rng(begin).integers(0, 256, PIECE, np.uint8)
        for at in range(begin, end, PIECE):
            os.pwrite(file, buffer, at)
        os.fsync(file)
        os.close(file)

    return write


WAYS = {
    "read: pread": pread,
    "read: pread, then fadvise DONTNEED": pread_forget,
    "read: O_DIRECT": direct,
    "read: mmap": mapped,
    "write: through the page cache": writer(0),
    "write: O_DIRECT": writer(os.O_DIRECT),
}


def forget(path):
    file = os.open(path, os.O_RDONLY)
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(file)


def reserve(path, nbytes):
    """Give writers a fresh file with its space taken, as the engine does."""
    path.unlink(missing_ok=True)
    file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    os.posix_fallocate(file, 0, nbytes)
    os.close(file)


def measure(path, way, threads):
    share = min(path.stat().st_size, MOST) // threads // PIECE * PIECE
    forget(path)
    if way.startswith("write"):
        reserve(path.with_name("bench_reads.tmp"), share * threads)
    jobs = [threading.Thread(target=WAYS[way], args=(path, i * share, (i + 1) * share)) for i in range(threads)]
    wall, cpu = time.perf_counter(), time.process_time()
    for job in jobs:
        job.start()
    for job in jobs:
        job.join()
    seconds = time.perf_counter() - wall
    row = {"way": way, "threads": threads, "nbytes": share * threads, "seconds": seconds}
    return row | {"cpu_seconds": time.process_time() - cpu}


def table(rows):
    lines = ["| way | threads | GB/s | CPU s per GB |", "|---|---|---|---|"]
    for row in rows:
        gigabytes = row["nbytes"] / 1e9
        speed = f"{gigabytes / row['seconds']:.2f} | {row['cpu_seconds'] / gigabytes:.2f}"
        lines.append(f"| {row['way']} | {row['threads']} | {speed} |")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--machine", default="unnamed", help="name in the file")
    options = parser.parse_args()
    rows = [measure(options.file, way, threads) for way in WAYS for threads in THREADS]
    options.file.with_name("bench_reads.tmp").unlink()
    today = datetime.date.today().isoformat()
    result = {"date": today, "cpu": cpu_model(), "kernel": os.uname().release, "rows": rows}
    head = f"# Reading and writing large files on {result['cpu']}, {today}\n\n`benchmarks/bench_reads.py FILE`, "
    head += f"Linux {result['kernel']}, up to {MOST / 1e9:.1f} GB.\n\n"
    save(f"reads_{options.machine}", result, head + table(rows) + "\n")


if __name__ == "__main__":
    main()
