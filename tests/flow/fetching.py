"""Helpers for tests of remote sources: all files of an output, and the size of a cache over time."""

import contextlib
import json
import os
import threading
import time
from pathlib import Path


def everything(folder):
    """Return every file without machine-specific ones; the journal without its times."""
    found = {}
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        name = path.relative_to(folder).as_posix()
        found[name] = path.read_bytes()
        if name == "halfbyte/journal.jsonl":
            lines = [json.loads(line) for line in path.read_text().splitlines() if line]
            found[name] = sorted(json.dumps({**line, "seconds": 0}, sort_keys=True) for line in lines)
    found.pop("halfbyte/fetched.json", None)
    found.pop("halfbyte/hashed.json", None)
    found.pop("halfbyte/verified.json", None)
    return found


class Watch:
    """The bytes of weights below a folder, sampled continuously; `most` is the maximum."""

    def __init__(self, folder):
        self.folder, self.most, self.looks = folder, 0, 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._over.set()
        self._thread.join()

    def _look(self):
        while not self._over.is_set():
            self.most, self.looks = max(self.most, weights_nbytes(self.folder)), self.looks + 1
            time.sleep(0.001)


def weights_nbytes(folder):
    total = 0
    for inner, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                total += (Path(inner) / name).stat().st_size if name.endswith(".safetensors") else 0
    return total
