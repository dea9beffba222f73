"""The rows that both sides read: made by the vocabulary of the first, and by that of the second, which must agree."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from halfbyte.calibrate.chat import load_template
from halfbyte.calibrate.named_files import checked, replace_datasets
from halfbyte.calibrate.rows import Rows, make_rows
from halfbyte.calibrate.vocabulary import load_vocabulary
from halfbyte.errors import UsageError
from halfbyte.recipe.decisions import Calibrate

SAMPLES, LENGTH = 128, 512


def rows_of(
    pairs: Sequence[str],
    source: Path,
    others: Sequence[Path] = (),
    *,
    samples: int = SAMPLES,
    length: int = LENGTH,
    kind: str = "packed",
) -> Rows:
    """Read `domain=path` pairs into rows of tokens; conversations go through the source's chat template.

    Every other checkpoint must give the same tokens to the same texts.
    """
    vocabulary = load_vocabulary(source)
    template = load_template(source, vocabulary.named)
    wanted = replace_datasets(_shape(samples, length, kind, chat=template is not None), pairs)
    rows = make_rows(wanted, vocabulary, template)
    for other in others:
        if make_rows(wanted, load_vocabulary(other), template).fingerprint() != rows.fingerprint():
            what = "the checkpoints give different tokens to the same text: their vocabularies differ"
            raise UsageError(what, where=f"{source} and {other}", fix="compare a checkpoint with its source")
    return rows


def _shape(samples: int, length: int, kind: str, *, chat: bool) -> Calibrate:
    """Return how rows are made, with a data set whose place those on the command line take."""
    anything = {"domain": "data", "source": "data.jsonl", "columns": ["text"], "chat_template": chat, "share": samples}
    return checked(
        {
            "samples": samples,
            "sequence_length": length,
            "rows": kind,
            "seed": None,  # the first samples, in the order of the files
            "propagate": "unquantized",
            "datasets": [anything],
        }
    )
