"""The work of the command: two folders and some data in, a report out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from halfbyte.calibrate.vocabulary import load_vocabulary
from halfbyte.compare.answers import answers
from halfbyte.compare.report import Report
from halfbyte.compare.sides import open_side, refuse_unlike
from halfbyte.compare.stream import Step, compare
from halfbyte.compare.tokens import rows_of
from halfbyte.numerics.chunks import usable_cores
from halfbyte.terminal.device_options import refuse_threads_beside_device


@dataclass(frozen=True, slots=True)
class Choice:
    """What the command line says."""

    data: Sequence[str]
    samples: int
    length: int
    rows: str
    score: str
    dtype: str
    activations: str
    kv: str
    device: str
    threads: int | None


def compare_checkpoints(source: Path, other: Path, choice: Choice, progress: Callable[[Step], None]) -> Report:
    """Compare two folders on the data."""
    refuse_threads_beside_device(choice.threads, choice.device)
    dtype = {"float32": torch.float32, "bfloat16": torch.bfloat16}[choice.dtype]
    with (
        open_side(source, dtype=dtype, device=choice.device) as first,
        open_side(other, dtype=dtype, activations=choice.activations, kv=choice.kv, device=choice.device) as second,
    ):
        refuse_unlike(first, second)  # before the data are read
        rows = rows_of(choice.data, source, [other], samples=choice.samples, length=choice.length, kind=choice.rows)
        scored = answers(rows, load_vocabulary(source)) if choice.score == "answers" else None
        threads = choice.threads or usable_cores()
        return compare(rows, first, second, scored=scored, threads=threads, progress=progress)
