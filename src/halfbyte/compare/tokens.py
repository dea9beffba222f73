"""Tokenize the data of a comparison; the tokenizers of both checkpoints must agree."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from halfbyte.calibrate.chat import load_template
from halfbyte.calibrate.datasets import checked, replace_datasets
from halfbyte.calibrate.token_rows import Rows, TooFewRowsError, make_rows
from halfbyte.calibrate.tokenizer import load_vocabulary
from halfbyte.errors import UsageError
from halfbyte.recipe.decisions import Calibrate

SAMPLES, LENGTH = 128, 512


def rows_of(
    pairs: Sequence[str],
    source: Path,
    others: Sequence[Path] = (),
    *,
    samples: int | None = None,
    length: int = LENGTH,
    kind: str = "packed",
) -> Rows:
    """Read `domain=path` pairs into rows of tokens, with the source's chat template for conversations.

    By default there are up to 128 rows, with an equal share from every file. Raise UsageError if another checkpoint
    tokenizes the texts differently.
    """
    vocabulary = load_vocabulary(source)
    template = load_template(source, vocabulary.named)
    count = samples or max(SAMPLES, len(pairs))
    while True:
        settings = replace_datasets(_settings(count, length, kind, chat=template is not None), pairs)
        try:
            rows = make_rows(settings, vocabulary, template)
        except TooFewRowsError as error:
            if samples is not None or not error.found:
                raise
            count = error.found * len(pairs)
        else:
            break
    for other in others:
        if make_rows(settings, load_vocabulary(other), template).fingerprint() != rows.fingerprint():
            what = "the checkpoints tokenize the same text differently"
            raise UsageError(what, where=f"{source} and {other}", fix="compare a checkpoint with its source")
    return rows


def _settings(samples: int, length: int, kind: str, *, chat: bool) -> Calibrate:
    """Return calibration settings with a placeholder dataset, to be replaced by the files."""
    placeholder = {
        "domain": "data",
        "source": "data.jsonl",
        "columns": ["text"],
        "chat_template": chat,
        "share": samples,
    }
    return checked(
        {
            "samples": samples,
            "sequence_length": length,
            "rows": kind,
            "seed": None,  # the first samples in file order
            "propagate": "unquantized",
            "datasets": [placeholder],
        }
    )
