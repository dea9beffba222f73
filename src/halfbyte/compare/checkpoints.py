"""Compare two checkpoint folders on some data, for the `compare` command."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from halfbyte.calibrate.tokenizer import load_vocabulary
from halfbyte.compare.answer_tokens import answers
from halfbyte.compare.models import open_side, refuse_unlike
from halfbyte.compare.report import Report
from halfbyte.compare.stream import Step, compare
from halfbyte.compare.tokens import rows_of
from halfbyte.machine.devices import refuse_threads_beside_device
from halfbyte.machine.resources import usable_cores


@dataclass(frozen=True, slots=True)
class Choice:
    """Options of the command."""

    data: Sequence[str]
    samples: int | None
    length: int
    rows: str
    score: str
    dtype: str
    activations: str
    kv: str
    device: str
    threads: int | None


def compare_checkpoints(
    source: Path,
    other: Path,
    choice: Choice,
    progress: Callable[[Step], None],
    begins: Callable[[str], None] = lambda what: None,
) -> Report:
    """Compare two folders on the data; `begins` is called with each phase, `progress` after each layer."""
    refuse_threads_beside_device(choice.threads, choice.device)
    dtype = {"float32": torch.float32, "bfloat16": torch.bfloat16}[choice.dtype]
    with (
        open_side(source, dtype=dtype, device=choice.device) as first,
        open_side(other, dtype=dtype, activations=choice.activations, kv=choice.kv, device=choice.device) as second,
    ):
        refuse_unlike(first, second)  # before the data is read
        begins("reading and tokenizing the texts")
        rows = rows_of(choice.data, source, [other], samples=choice.samples, length=choice.length, kind=choice.rows)
        scored = answers(rows, load_vocabulary(source)) if choice.score == "answers" else None
        threads = choice.threads or usable_cores()
        begins("running both models, layer by layer")
        return compare(rows, first, second, scored=scored, threads=threads, progress=progress)
