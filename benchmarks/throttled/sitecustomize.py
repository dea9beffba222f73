"""Slow disks and networks for Ray's workers, which start with this file on their path.

A worker stands for a node. Reads and writes each use a network of the worker's own, and both use the storage that all
share, whose clock is a file. A worker waits until the time for its bytes has passed on each. Up to a fifth of a second
of unused time carries over, because a busy machine wakes sleepers late.
"""

import fcntl
import functools
import importlib.abc
import importlib.machinery
import json
import os
import struct
import sys
import threading
import time
from pathlib import Path

FOLDER = os.environ.get("HALFBYTE_BENCH_LIMITS")  # a folder with limits.json and the storage's clock
LEAST_SECONDS, CREDIT_SECONDS = 0.05, 0.2
_CLOCKS, _LOCK = {}, threading.Lock()


@functools.cache
def limits_of(_changed):
    return json.loads((Path(FOLDER) / "limits.json").read_text())


def wait_for(nbytes, way):
    limits = limits_of((Path(FOLDER) / "limits.json").stat().st_mtime_ns)
    with _LOCK:
        mine = _CLOCKS[way] = max(_CLOCKS.get(way, 0.0), time.time() - CREDIT_SECONDS) + nbytes / limits["network"]
    with (Path(FOLDER) / "clock").open("r+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        shared = max(*struct.unpack("d", file.read(8)), time.time() - CREDIT_SECONDS) + nbytes / limits["storage"]
        file.seek(0)
        file.write(struct.pack("d", shared))
    ahead = max(mine, shared) - time.time()
    if ahead > LEAST_SECONDS:  # less is owed, and waited for with what comes next
        time.sleep(ahead)


def throttle_reads(module):
    raw, pieces = module.Reader.raw, module.Reader.pieces

    def slow_raw(self, info):
        wait_for(info.nbytes, "read")
        return raw(self, info)

    def slow_pieces(self, info):
        for at, piece in pieces(self, info):
            wait_for(len(piece), "read")
            yield at, piece

    module.Reader.raw, module.Reader.pieces = slow_raw, slow_pieces


def throttle_writes(module):
    write = module.ShardFile.write

    def slow_write(self, data, offset, *, lent=False):
        wait_for(len(data), "write")
        write(self, data, offset, lent=lent)

    module.ShardFile.write = slow_write


CHANGES = {"halfbyte.checkpoint.reader": throttle_reads, "halfbyte.checkpoint.atomic_write": throttle_writes}


class Throttled(importlib.abc.MetaPathFinder):
    """Changes modules when they are first imported."""

    def find_spec(self, name, path, target=None):
        if name not in CHANGES:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        run = spec.loader.exec_module
        spec.loader.exec_module = lambda module: (run(module), CHANGES[name](module))
        return spec


if FOLDER:
    sys.meta_path.insert(0, Throttled())
