"""Find the tokens of assistant answers in conversations rendered with Kimi's template.

A model trained on answers does not predict questions well, so scores on questions are noise. An answer starts after the
assistant's header and ends with <|im_end|>, inclusive. Tokens that the server adds are excluded: <think>, and </think>
directly after it if thinking is off.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from halfbyte.calibrate.token_rows import Rows
from halfbyte.calibrate.tokenizer import Vocabulary
from halfbyte.errors import UsageError

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
