"""Tokenize the data of a comparison, and find the tokens of answers; the tokenizers of both checkpoints must agree."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from halfbyte.calibrate.chat import load_template
from halfbyte.calibrate.datasets import checked, replace_datasets
from halfbyte.calibrate.token_rows import Rows, TooFewRowsError, make_rows
from halfbyte.calibrate.tokenizer import Vocabulary, load_vocabulary
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


# Find the tokens of assistant answers in conversations rendered with Kimi's template.
#
# A model trained on answers does not predict questions well, so scores on questions are noise. An answer starts after
# the assistant's header and ends with <|im_end|>, inclusive. Tokens that the server adds are excluded: <think>, and
# </think> directly after it if thinking is off.

_ASSISTANT, _MIDDLE, _END = "<|im_assistant|>", "<|im_middle|>", "<|im_end|>"
_THINK, _THOUGHT = "<think>", "</think>"
_OTHER, _HEADER, _STARTED, _OPENED, _INSIDE = range(5)


def answers(rows: Rows, vocabulary: Vocabulary) -> NDArray[np.bool_]:
    """Return a mask [R, L] of the tokens that are part of an answer."""
    special = vocabulary.special
    missing = [name for name in (_ASSISTANT, _MIDDLE, _END) if name not in special]
    if missing:
        what = f"cannot find answers: the tokenizer has no {missing[0]}"
        raise UsageError(what, where="--score answers", fix="omit --score")
    steps = {
        (_HEADER, special[_MIDDLE]): _STARTED,
        (_STARTED, special.get(_THINK)): _OPENED,
        (_OPENED, special.get(_THOUGHT)): _INSIDE,
    }
    mask = np.zeros(rows.tokens.size, np.bool_)
    state, document = _OTHER, -1
    pairs = zip(rows.tokens.reshape(-1).tolist(), rows.documents.reshape(-1).tolist(), strict=True)
    for at, (token, number) in enumerate(pairs):
        if number != document:
            state, document = _OTHER, number
        if token == special[_ASSISTANT]:
            state = _HEADER
        elif (state, token) in steps:
            state = steps[state, token]
        elif state in (_STARTED, _OPENED, _INSIDE):
            mask[at] = True
            state = _OTHER if token == special[_END] else _INSIDE
    if not mask.any():
        raise UsageError("the data contains no answers", where="--score answers", fix="use data with conversations")
    return mask.reshape(rows.tokens.shape)
