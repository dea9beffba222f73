"""Compare two checkpoint folders on some data, for the `compare` command."""

from __future__ import annotations

from collections.abc import Callable

import torch

from halfbyte.calibrate.tokenizer import load_vocabulary
from halfbyte.compare.models import open_side, refuse_unlike
from halfbyte.compare.report import Report
from halfbyte.compare.stream import Step, compare
from halfbyte.compare.tokens import answers, rows_of
from halfbyte.machine.device_option import refuse_threads_beside_device
from halfbyte.machine.resources import usable_cores
from halfbyte.options.check import CompareOptions


def compare_checkpoints(
    options: CompareOptions, progress: Callable[[Step], None], begins: Callable[[str], None] = lambda what: None
) -> Report:
    """Compare two folders on the data; `begins` is called with each phase, `progress` after each layer."""
    refuse_threads_beside_device(options.threads, options.device)
    dtype = {"float32": torch.float32, "bfloat16": torch.bfloat16}[options.dtype]
    with (
        open_side(options.source, dtype=dtype, device=options.device) as first,
        open_side(
            options.out_folder, dtype=dtype, activations=options.activations, kv=options.kv, device=options.device
        ) as second,
    ):
        refuse_unlike(first, second)  # before the data is read
        begins("reading and tokenizing the texts")
        rows = rows_of(
            options.data,
            options.source,
            [options.out_folder],
            samples=options.samples,
            length=options.length,
            kind=options.rows,
        )
        scored = answers(rows, load_vocabulary(options.source)) if options.score == "answers" else None
        threads = options.threads or usable_cores()
        begins("running both models, layer by layer")
        return compare(rows, first, second, scored=scored, threads=threads, progress=progress)
